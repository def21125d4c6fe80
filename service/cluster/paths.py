"""One spelling for each path: rules of HAProxy's frontend, before any that compares a path.

HAProxy compares the path as it was sent, and a replica the one that its server has decoded. So what
is decoded, HAProxy decodes first: characters that need no encoding (RFC 3986, section 2.3). Slashes
that a client adds, where it joins a base URL and a path, do not count. What remains encoded stands
in the name of a model alone; an encoded slash elsewhere is refused, as is a path in which both
would have to be told apart.

By set-path, since HAProxy 2.8 has `normalize-uri` among its experimental directives only.
"""

# An encoded character that needs none: a letter, a digit, or one of -._~
NEEDLESS = "%(2[de]|3[0-9]|[46][1-9a-f]|[57][0-9a]|5f|7e)"
ENCODED, NEEDLESSLY = "{ path -m sub % }", f"{{ path -m reg -i {NEEDLESS} }}"
OF_A_MODEL = "{ path -m reg ^[^%]*/models/ }"  # whose name may have an organisation's slash


def path_rules(refuse: str) -> tuple[str, ...]:
    """Return the rules.

    Args:
        refuse: HAProxy's words for the answer to a path that is refused.
    """
    rules = (
        f"return {refuse} if {{ path -m sub -i %2f }} !{OF_A_MODEL}",
        f"return {refuse} if {ENCODED} {NEEDLESSLY}"
        f""" {{ 'path,regsub("{NEEDLESS}","",gi)' -m sub % }}""",
        f"set-path %[path,url_dec] if {ENCODED} {NEEDLESSLY}",
        """set-path '%[path,regsub("//+","/",g)]' if { path -m sub // }""",
        """set-path '%[path,regsub("/$","")]' if { path_end / } !{ path / }""",
    )
    return tuple(f"    http-request {rule}" for rule in rules)
