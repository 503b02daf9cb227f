"""StyleSet: style instructions to follow and role-plays with oneself, judged by models that listen (Chiang et al., 2025)."""
