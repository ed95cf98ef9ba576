"""``{% cache %}`` with tags, computed once among processes.

``{% load cattlegrid %}`` in place of ``{% load cache %}``; the tag is written as Django's, with ``tags=`` in addition::

    {% load cattlegrid %}
    {% cache 600 sidebar user.id tags="pages,user:7" %} ... {% endcache %}
    {% cache 600 sidebar user.id tags=page_tags using="fragments" %} ... {% endcache %}

``tags`` is a text with commas between the tags, or a list. Fragments have the keys that Django's own tag gives them.
"""

from __future__ import annotations

from typing import Any, List, Optional

from django.core.cache import InvalidCacheBackendError, caches
from django.core.cache.utils import make_template_fragment_key
from django.template import Context, Library, Node, NodeList, TemplateSyntaxError, VariableDoesNotExist
from django.template.base import FilterExpression, Parser, Token

register = Library()


class CacheNode(Node):
    """A fragment."""

    def __init__(
        self,
        nodelist: NodeList,
        expire_time_var: FilterExpression,
        fragment_name: str,
        vary_on: List[FilterExpression],
        cache_name: Optional[FilterExpression],
        tags: Optional[FilterExpression],
    ) -> None:
        self.nodelist = nodelist
        self.expire_time_var = expire_time_var
        self.fragment_name = fragment_name
        self.vary_on = vary_on
        self.cache_name = cache_name
        self.tags = tags

    def render(self, context: Context) -> Any:
        """The fragment, from the cache if it is there."""
        expire_time = self._resolved(self.expire_time_var, context)
        if expire_time is not None:
            try:
                expire_time = int(expire_time)
            except (ValueError, TypeError):
                raise TemplateSyntaxError(f'"cache" tag got a non-integer timeout value: {expire_time!r}') from None
        tags = tags_of(self._resolved(self.tags, context)) if self.tags else []
        cache = self._cache(context)
        key = make_template_fragment_key(self.fragment_name, [var.resolve(context) for var in self.vary_on])
        if hasattr(cache, "fetch"):
            # A fragment that is empty text is a value; None is not possible.
            return cache.get_or_set(key, lambda: self.nodelist.render(context), expire_time, tags=tags)
        if tags:
            raise TemplateSyntaxError('"cache" tag got tags, and its cache is not cattlegrid.django.Cache')
        value = cache.get(key)
        if value is None:
            value = self.nodelist.render(context)
            cache.set(key, value, expire_time)
        return value

    def _cache(self, context: Context) -> Any:
        if self.cache_name:
            name = self._resolved(self.cache_name, context)
            try:
                return caches[name]
            except InvalidCacheBackendError:
                raise TemplateSyntaxError(f"Invalid cache name specified for cache tag: {name!r}") from None
        try:
            return caches["template_fragments"]
        except InvalidCacheBackendError:
            return caches["default"]

    @staticmethod
    def _resolved(expression: FilterExpression, context: Context) -> Any:
        try:
            return expression.resolve(context)
        except VariableDoesNotExist:
            raise TemplateSyntaxError(f'"cache" tag got an unknown variable: {expression.var!r}') from None


def tags_of(value: Any) -> List[str]:
    """The tags of a text with commas, or of a list; none of None."""
    if value is None:
        return []
    if isinstance(value, str):
        return [tag.strip() for tag in value.split(",") if tag.strip()]
    return [str(tag) for tag in value]


@register.tag("cache")
def do_cache(parser: Parser, token: Token) -> CacheNode:
    """``{% cache SECONDS NAME [VARIABLE ...] [tags=TAGS] [using=CACHE] %} ... {% endcache %}``."""
    nodelist = parser.parse(("endcache",))
    parser.delete_first_token()
    tokens = token.split_contents()
    if len(tokens) < 3:
        raise TemplateSyntaxError(f"'{tokens[0]!r}' tag requires at least 2 arguments.")
    named = {"using": None, "tags": None}
    while len(tokens) > 3:
        name, equals, value = tokens[-1].partition("=")
        if not equals or name not in named or named[name]:
            break
        named[name] = parser.compile_filter(value)
        tokens.pop()
    return CacheNode(
        nodelist,
        parser.compile_filter(tokens[1]),
        tokens[2],
        [parser.compile_filter(text) for text in tokens[3:]],
        named["using"],
        named["tags"],
    )
