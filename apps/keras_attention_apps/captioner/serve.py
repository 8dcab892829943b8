"""`captioner serve`: captions over HTTP."""

import functools
from typing import Annotated

import pydantic
from fastapi import Request
from starlette.datastructures import UploadFile
from starlette.responses import JSONResponse

from keras_attention_apps.captioner.captions import Caption, check_inference
from keras_attention_apps.captioner.images import ImageError, image_to_array, read_image
from keras_attention_apps.captioner.runtimes import RUNTIMES
from keras_attention_apps.common.models import name_of
from keras_attention_apps.common.web import rest
from keras_attention_apps.common.web.fairness import Batches, Quota
from keras_attention_apps.common.web.guard import Refusal, header

FORM = "multipart/form-data"
# Field of a form with the image.
IMAGE = "image"


def serve(config):
    """Serve captions as a `ServeConfig` describes it."""
    rest.serve("captioner", config.server, functools.partial(add_routes, config))


# A caption, as `captioner caption --json` describes it.
Captioned = rest.model_of("Captioned", Caption.schema)


class Answer(Captioned):  # type: ignore[valid-type, misc]
    """The best caption and, if more than one is wanted, all of them, best first."""

    captions: list[Captioned] | None = None  # type: ignore[valid-type]


def add_routes(config, service):
    """Load the model, and add its route to a `rest.Service`."""
    check_inference(config.model)
    captioner, size = RUNTIMES.load_for(config), config.batch_size
    beam_size = captioner.search_options(**config.search.given)["beam_size"]

    class Options(pydantic.BaseModel):
        n_best: Annotated[int, pydantic.Field(ge=1, le=beam_size)] = 1
        maps: bool = False
        api_key: str = ""

    class Form(Options):
        image: Annotated[str, pydantic.Field(json_schema_extra={"format": "binary"})]

    def call(inputs):
        arrays, numbers = zip(*inputs, strict=True)
        options = {"n_best": max(numbers), "batch_size": size}
        results = captioner.caption_each(list(arrays), **options, **config.search.given)
        return (captions for _, captions in results)

    quota = Quota(config.megapixels_per_minute, "megapixels")
    batches = Batches(
        call, size, service.batch_sizes.labels(name_of(config.model.name)).observe
    )

    def captioned(client, content, options):
        """Return the answer to a request, a dict."""
        try:
            image = read_image(content, max_pixels=config.max_megapixels * 1_000_000)
        except ImageError as error:
            # Without "the given bytes", which the client does not know.
            raise Refusal(400, f"{IMAGE}: {str(error).partition(': ')[2]}") from None
        quota.use(client, image.width * image.height / 1_000_000)
        array = image_to_array(image, captioner.image_size)
        del image
        (captions,) = batches([(array, options.n_best)])
        entries = [entry.details() for entry in captions[: options.n_best]]
        if not options.maps:
            for entry in entries:
                del entry["attention"]
        return {**entries[0], **({"captions": entries} if options.n_best > 1 else {})}

    async def caption(request: Request):
        """Caption an image, the body of the request or the field "image" of a form."""
        is_form = header(request, "content-type").lower().startswith(FORM)
        values = await rest.values_of(request) if is_form else request.query_params
        service.authorize(request, values.get("api_key"))
        options = rest.checked(Options, values)
        content = values.get(IMAGE) if is_form else await request.body()
        if isinstance(content, UploadFile):
            content = await content.read()
        if not isinstance(content, bytes) or not content:
            raise Refusal(400, f"{IMAGE}: expected an image. Received: none")
        client = request.state.client
        # The number of pixels is counted once it is known.
        quota.check(client)
        answer = await service.in_thread(
            request, captioned, client, content, options, size=len(content)
        )
        return JSONResponse(answer)

    binary = {"schema": {"type": "string", "format": "binary"}}
    service.route(
        "POST",
        "/caption",
        caption,
        Answer,
        **rest.described(Form, FORM, **{"image/*": binary}),
    )
