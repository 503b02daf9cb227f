"""ParaS2S's benchmark: answers to contrasting styles, scored one by one."""
