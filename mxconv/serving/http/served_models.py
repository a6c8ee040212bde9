"""The models of a server, by the names by which requests choose."""

from collections.abc import Iterator, Mapping

from mxconv.decode import Options, TextModel
from mxconv.serving.http.api_error import ApiError
from mxconv.serving.http.serve_options import ServeOptions
from mxconv.serving.http.served import ServedModel
from mxconv.serving.kv_budget import divided
from mxconv.serving.llm_engine import Engine


class ServedModels:
    """Models with an engine each.

    Args:
        models: by their names; the first answers requests that name none.
        decoding: which levels of each take part, and how.
        options: limits; `kv_bytes` is divided.

    Raises:
        ModelError: a level that a model does not have, or a share of `kv_bytes` that holds no sequence.
    """

    def __init__(self, models: Mapping[str, TextModel], decoding: Options, options: ServeOptions) -> None:
        hierarchies = {name: model.hierarchy(decoding) for name, model in models.items()}
        shares = {} if options.kv_bytes is None else divided(options.kv_bytes, hierarchies)
        self._by_name: dict[str, ServedModel] = {}
        for name, model in models.items():
            engine = Engine(hierarchies[name], options.max_sequences, shares.get(name))
            self._by_name[name] = ServedModel(model, name, engine, options)

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(self._by_name.values())

    def of(self, name: str | None) -> ServedModel:
        """The model that a request names, or the first; raises ApiError where there is none of that name."""
        found = next(iter(self)) if name is None else self._by_name.get(name)
        if found is None:
            here = f"{', '.join(map(repr, self._by_name))} {'is' if len(self._by_name) == 1 else 'are'}"
            raise ApiError(404, f"model: {name!r} is not here; {here}.", param="model", code="model_not_found")
        return found
