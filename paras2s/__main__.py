"""`python -m paras2s`."""

from paras2s.cli.app import main

if __name__ == "__main__":
    main()
