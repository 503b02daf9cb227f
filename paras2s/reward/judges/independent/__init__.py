"""A judge that did not teach: another recogniser, other tone features on other voices, other sentences than the rubric's."""
