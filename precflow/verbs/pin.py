"""``precflow pin INSTANCE [STORE]``: keep one upload in a store behind a URL whatever its age, or let it go again."""

from __future__ import annotations

from collections.abc import Sequence

from precflow.verbs import Verb, compose_site, make_parser, print_json, write

VERB = Verb(140, "keep one upload in a store, whatever its age", "pin dump.reference-9f1c +site=local")


def main(arguments: Sequence[str]) -> int:
    """Pin an upload; return 0.

    Raises:
        ConfigError: The store is a folder, or the site file is not usable.
        StoreError: There is no such upload, or the store fails.
    """
    options = make_parser("pin", "INSTANCE [STORE] [+site=NAME] [--because TEXT] [--remove]")
    options.add_argument("instance", metavar="INSTANCE", help="as precflow ls store shows it, or its beginning")
    options.add_argument("words", nargs="*", metavar="STORE", help="a URL, or +site=NAME whose store it is")
    options.add_argument("--because", default="", metavar="TEXT", help="why; shown by precflow ls store and prune")
    options.add_argument("--remove", action="store_true", help="take the pin away")
    chosen = options.parse_args(arguments)
    from precflow.run import stored

    named = [word for word in chosen.words if "=" not in word]
    config = compose_site([word for word in chosen.words if "=" in word], chosen.config_dir)
    place = stored.refuse_folder(stored.choose_place(named[0] if named else "", config))
    recipe, upload = stored.find_upload(place, chosen.instance)
    if chosen.remove:
        recipe.unpin(upload)
    else:
        recipe.pin(upload, chosen.because)
    name = f"{upload.name}-{upload.key}"
    if chosen.json:
        print_json({"store": recipe.url, "instance": name, "pinned": not chosen.remove})
    else:
        write(f" {recipe.url}/{name}   {'no longer pinned' if chosen.remove else 'pinned: prune leaves it'}")
    return 0
