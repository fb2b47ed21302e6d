"""`stop`, `start` and `restart`: the same containers end, and start again."""

from __future__ import annotations

from sparkdeploy.cli.options import JsonOption, NameArgument, PageCacheOption
from sparkdeploy.terminal.console import console


def stop(name: NameArgument = None) -> None:
    """End a deployment's containers and leave them there, so that `start` brings them back."""
    from sparkdeploy.deploy import names
    from sparkdeploy.deploy.lifecycle import stop as end

    name = names.to_change(name, ("stop",))
    if name == names.NOTHING:
        console.info("nothing to do: nothing is deployed")
        return
    stopped = end(name)
    if not stopped:
        console.info(f"nothing to do: {name} does not run")
        return
    for container in stopped:
        console.info(f"stopped {container}")
    console.info(f"its memory is free; `sparkdeploy start {name}` starts the same again")


def start(
    name: NameArgument = None,
    drop_page_cache: PageCacheOption = False,
    as_json: JsonOption = False,
) -> None:
    """Start a stopped deployment again: the same containers, until the model's first answer."""
    from sparkdeploy.cli.outcome import print_started
    from sparkdeploy.deploy import names
    from sparkdeploy.deploy.lifecycle import start as begin

    print_started(
        begin(names.said(name, ("start",)), drop_page_cache=drop_page_cache), as_json=as_json
    )


def restart(
    name: NameArgument = None,
    drop_page_cache: PageCacheOption = False,
    as_json: JsonOption = False,
) -> None:
    """Stop a deployment, and start the same containers again."""
    from sparkdeploy.cli.outcome import print_started
    from sparkdeploy.deploy import names
    from sparkdeploy.deploy.lifecycle import restart as begin_anew

    print_started(
        begin_anew(names.said(name, ("restart",)), drop_page_cache=drop_page_cache), as_json=as_json
    )
