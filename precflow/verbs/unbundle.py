"""``precflow unbundle FILE``: verify a bundle and put what is in it where runs of its recipe look."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from precflow.config.sections.store_address import is_address
from precflow.verbs import Verb, compose_site, make_parser, print_json, write

VERB = Verb(130, "verify such a file, and put it where runs look", "unbundle minilm-reference.bundle.tar")


def main(arguments: Sequence[str]) -> int:
    """Open the bundle, upload it if the store is a URL, and print what it had; return 0.

    Raises:
        StoreError: The file is no bundle, was cut short or altered, or is of a newer precflow; or a store cannot be written.
    """
    options = make_parser("unbundle", "FILE [--runs DIR] [--store DIR|URL] [+site=NAME]")
    options.add_argument("file", type=Path, metavar="FILE", help="what precflow bundle wrote")
    options.add_argument(
        "--runs", default="runs", metavar="DIR", help="folder of the run folders, as in runs=DIR (default runs)"
    )
    options.add_argument(
        "--store",
        default="",
        metavar="DIR|URL",
        help="the store, as in store=DIR; a URL is uploaded to, behind the run folder's own (default: that alone)",
    )
    options.add_argument("site", nargs="*", metavar="+site=NAME", help="the site, whose profile and endpoint open a URL")
    chosen = options.parse_args(arguments)
    is_remote = is_address(chosen.store)
    from precflow.report import wording
    from precflow.report.screens.paper import format_size
    from precflow.run import bundle, progress

    recipe = bundle.read_header(chosen.file).recipe
    here = Path(chosen.runs).expanduser() / recipe / "store"
    root = Path(chosen.store).expanduser() / recipe if chosen.store and not is_remote else here
    tell = progress.choose("auto", recipe, ci=False)
    with tell.working("unbundle", ""):
        taken = bundle.open_bundle(chosen.file, root, lambda done, total: tell.advance(done, total, "bytes"))
    if is_remote:
        from precflow.run.remote.filesystem import Address
        from precflow.run.remote.sharing import Remote
        from precflow.run.store import Store

        site = compose_site(chosen.site, chosen.config_dir).site
        remote = Remote(Address(chosen.store, site.store_profile, site.store_endpoint), recipe, Store(root))
        with tell.working("upload", ""):
            for sealed, _ in taken:
                remote.share(sealed, lambda done, total: tell.advance(done, total, "bytes"))
    if chosen.json:
        rows = [{"name": one.name, "key": one.key, "folder": str(one.folder), "new": is_new} for one, is_new in taken]
        print_json({"recipe": recipe, "store": chosen.store if is_remote else str(root), "instances": rows})
        return 0
    for sealed, is_new in taken:
        age = wording.describe_age(time.time() - sealed.finished) or "within the last hour"
        state = "" if is_new else "   was here already"
        write(f" {sealed.name}-{sealed.key}   {format_size(sealed.bytes)}   made {age}{state}")
    there = {sealed.name.partition(".")[2] for sealed, _ in taken}
    more = f" store={chosen.store}" if chosen.store else f" runs={chosen.runs}" if chosen.runs != "runs" else ""
    write(f" verified, in {root}{f' and uploaded to {chosen.store}' if is_remote else ''}")
    write(f" The other side:  precflow +recipe={recipe} sides=[{'target' if 'reference' in there else 'reference'}]{more}")
    return 0
