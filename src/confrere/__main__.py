"""`python -m confrere` is the same as `confrere`."""

from confrere.cli import main

if __name__ == "__main__":
    main()
