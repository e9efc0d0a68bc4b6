"""The one exception for mistakes that the user can mend."""


class UserError(Exception):
    """Bad input: one line saying what, where and how to mend it. The command line prints it and exits with 2."""
