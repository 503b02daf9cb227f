"""The studio: a local web application over run folders (`paras2s studio`)."""
