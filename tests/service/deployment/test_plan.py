"""What a file would change on a cluster."""

from typing import Any

from service.deployment.plan import plan

OLD: dict[str, Any] = {
    "name": "a",
    "route_prefix": "/a",
    "import_path": "service.app:build",
    "args": {"model": "org/old", "threads": 1, "tracing": "https://user:secret@there"},
    "runtime_env": {"env_vars": {"TOKEN": "old secret"}},
    "deployments": [{"name": "Encoder", "num_replicas": 1}],
}


def deployed(**applications: Any) -> dict[str, Any]:
    """What Ray says of applications that files deployed."""
    return {name: {"deployed_app_config": file} for name, file in applications.items()}


def test_the_same_file_leaves_all_as_it_is() -> None:
    """Whatever the order of its keys."""
    turned = dict(reversed(OLD.items()))

    found = plan({"applications": [turned]}, deployed(a=OLD))

    assert list(found.lines()) == ["leaves a as it is"]


def test_what_all_applications_share_is_told_of_each() -> None:
    """Ray says the file's logging_config of every application that has none of its own."""
    shared, own = {"log_level": "INFO"}, {"log_level": "DEBUG"}
    files = [OLD, {**OLD, "name": "b", "logging_config": own}]
    there = deployed(a={**OLD, "logging_config": shared}, b=files[1])

    same = plan({"logging_config": shared, "applications": files}, there)
    other = plan({"logging_config": own, "applications": files}, there)

    assert (same.changed, same.left) == ({}, ["a", "b"])
    assert (list(other.changed), other.left) == (["a"], ["b"])


def test_each_key_that_changes_is_told() -> None:
    """With its value before and after, also where it comes or goes."""
    new = {
        **OLD,
        "route_prefix": "/b",
        "args": {"model": "org/new", "max_replicas": 2, "tracing": OLD["args"]["tracing"]},
    }

    found = plan({"applications": [new]}, deployed(a=OLD))

    assert found.changed == {
        "a": [
            "route_prefix /a -> /b",
            "args.model org/old -> org/new",
            "args.max_replicas unset -> 2",
            "args.threads 1 -> unset",
        ]
    }


def test_what_may_be_secret_is_not_shown() -> None:
    """A variable, an address that may hold a password, a key of no setting of ours."""
    new = {
        **OLD,
        "args": {**OLD["args"], "tracing": "https://user:other@there", "api_keys": "new key"},
        "runtime_env": {"env_vars": {"TOKEN": "new secret"}},
    }

    lines = " ".join(plan({"applications": [new]}, deployed(a=OLD)).lines())

    assert "args.tracing (not shown) -> (not shown)" in lines
    assert "args.api_keys unset -> (not shown)" in lines
    assert "runtime_env.env_vars.TOKEN (not shown) -> (not shown)" in lines
    assert not {"secret", "other", "key", "user"} & set(lines.replace(":", " ").split())


def test_of_another_program_nothing_that_it_is_handed_is_shown() -> None:
    """Its PIN may be a number, and its `model` may be a password."""
    old = {**OLD, "import_path": "theirs:app", "args": {"model": "old", "pin": 1234}}
    new = {**old, "args": {"model": "new", "pin": 4321}}

    (line,) = plan({"applications": [new]}, deployed(a=old)).lines()

    hidden = "(not shown) -> (not shown)"
    assert line == f"changes a: args.model {hidden}; args.pin {hidden}"


def test_what_ray_assumes_is_no_change() -> None:
    """A path that is not said is /."""
    old = {name: value for name, value in OLD.items() if name != "route_prefix"}
    assert plan({"applications": [{**OLD, "route_prefix": "/"}]}, deployed(a=old)).left == ["a"]


def test_an_application_under_another_name_is_another() -> None:
    """The one is added, and the other removed, though the prefix is the same."""
    found = plan({"applications": [{**OLD, "name": "b"}]}, deployed(a={**OLD, "name": "a"}))

    assert (found.added, found.changed, list(found.removed)) == ({"b": "/a"}, {}, ["a"])


def test_one_that_is_being_removed_is_gone() -> None:
    """Its name in a file adds it anew."""
    going = {"a": {"deployed_app_config": OLD, "status": "DELETING"}}

    assert plan({"applications": [OLD]}, going).added == {"a": "/a"}
    assert plan({"applications": []}, going).removed == {}
