"""What stands around a page: the next lesson and the last one, between which companions do not count, and a
link to the page's source where it has one."""

BACK, ON = 1, 2  # in Sphinx's relations of a page: (its parent, the page before, the page after)


def neighbour(relations: dict, name: str, way: int) -> str | None:
    """The nearest page on one side that is no companion."""
    name = relations[name][way]
    while name and "/more/" in name:
        name = relations[name][way]
    return name


def set_around(app, name, template, context, tree):
    """Change what a page's template knows."""
    relations = app.builder.relations
    for key, way in (("prev", BACK), ("next", ON)):
        if found := neighbour(relations, name, way) if name in relations else None:
            title = app.builder.render_partial(app.env.titles[found])["title"]
            context[key] = {"link": app.builder.get_relative_uri(name, found), "title": title}
        else:
            context[key] = None
    if name.startswith("notebooks/"):
        context["theme_source_directory"] = ""  # they lie beside docs/
    if name.startswith("search"):
        context["page_source_suffix"] = None


def setup(app):
    app.connect("html-page-context", set_around)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
