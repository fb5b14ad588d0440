"""Configs of the public listener that operators change while the broker runs.

One `LiveSettings` per listener, used on its loop by `app.py` for every request and by the fast
lane. The values in force are read from the metadata image again only when its configs have changed,
so a request costs one comparison.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from http_api.contract.origins import NO_ORIGINS, AllowedOrigins, allowed_origins
from raft_metadata.common.configs.layers import ConfigLayers
from raft_metadata.common.configs.table import (
    CORS_ALLOWED_ORIGINS,
    HTTP_GZIP,
    HTTP_IGNORED_PARAMETERS,
    default_word,
)

if TYPE_CHECKING:
    from broker.server.requests import BrokerApis

GZIP_OFF: Final = "off"
GZIP_ALL: Final = "all"
"""Values of ``http.gzip``; the third one, ``lists``, leaves out answers about records."""


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """The configs in force. Immutable."""

    origins: AllowedOrigins = NO_ORIGINS
    gzip: str = default_word(HTTP_GZIP)
    ignored_parameters: frozenset[str] = frozenset()
    gzips_records: bool = False
    """True if answers about records may go as gzip; the fast lane gives none of these."""


class LiveSettings:
    """The configs in force for one broker. Owner: the app, on its loop."""

    def __init__(self, apis: BrokerApis) -> None:
        self._apis = apis
        self._configs: object = None
        """The image's configs from which ``_settings`` were read."""
        self._settings = HttpSettings()

    def current(self) -> HttpSettings:
        """Return the configs in force in the broker's present image."""
        image = self._apis.image
        if image.configs is not self._configs:
            layers = ConfigLayers(
                broker=image.broker_configs(self._apis.broker_id), cluster=image.cluster_configs()
            )
            gzip = layers.word(HTTP_GZIP)
            self._settings = HttpSettings(
                origins=allowed_origins(layers.items(CORS_ALLOWED_ORIGINS)),
                gzip=gzip,
                gzips_records=gzip == GZIP_ALL,
                ignored_parameters=frozenset(layers.items(HTTP_IGNORED_PARAMETERS)),
            )
            self._configs = image.configs
        return self._settings
