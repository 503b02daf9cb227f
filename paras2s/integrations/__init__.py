"""Our judges for those who train elsewhere: a server, and rewards of TRL, verl and ms-swift."""
