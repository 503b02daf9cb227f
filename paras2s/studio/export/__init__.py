"""The studio as files: a static copy of chosen runs that opens from disk (`paras2s studio --export`)."""
