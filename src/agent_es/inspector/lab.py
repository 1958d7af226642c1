"""The page of the crash lab: one drives the crash, the naive restart and the durable resume, and sees what moved.

Rule 1: it touches no store but those of its experiments, which are in folders of their own.
Rule 2: an act is a POST that answers with the way back to the page; with htmx, with the lab as it is then.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from urllib.parse import parse_qsl, quote

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from agent_es.errors import ActOutOfOrder, AgentError, BadScenario
from agent_es.inspector.experiment import Experiment, Moment
from agent_es.inspector.pages import number_of, page

Form = Mapping[str, str]


def crash(experiment: Experiment, form: Form) -> None:
    """Let a worker die at the place that was chosen."""
    place = number_of(form.get("place", ""))
    if place is None:
        raise BadScenario(f"place={form.get('place', '')!r:.80} is no number of a place; choose one of the list")
    experiment.crash(place)


def naive(experiment: Experiment, _: Form) -> None:
    """Restart as a program without a journal does."""
    experiment.restart_naively()


def resume(experiment: Experiment, _: Form) -> None:
    """Go on as the journal has it."""
    experiment.resume()


def reset(experiment: Experiment, _: Form) -> None:
    """Begin anew."""
    experiment.reset()


ACTS: Mapping[str, Callable[[Experiment, Form], None]] = {act.__name__: act for act in (crash, naive, resume, reset)}


def routes(*experiments: Experiment) -> list[Route]:
    """Return where the lab is; the first experiment is the one that it opens with.

    Whoever asks for them closes them.
    """
    lab = _Lab(experiments)
    return [
        Route("/lab", lab.shown),
        *(Route(f"/lab/{name}", lab.doing(act), methods=["POST"]) for name, act in ACTS.items()),
        Route("/lab/{name}", lab.shown),
    ]


def lab_url(name: str) -> str:
    """Return where the page of an experiment is.

    >>> lab_url("shop.tests:refund")
    '/lab/shop.tests%3Arefund'
    """
    return f"/lab/{quote(name, safe='')}"


class _Lab:
    """The pages of some experiments."""

    def __init__(self, experiments: Sequence[Experiment]) -> None:
        self._experiments = {experiment.name: experiment for experiment in experiments}

    async def shown(self, request: Request) -> Response:
        """Show where an experiment stands."""
        return await self._page(request, self._named(request.path_params.get("name")))

    def doing(self, act: Callable[[Experiment, Form], None]) -> Callable[[Request], object]:
        """Return what does an act, and shows what came of it."""

        async def do(request: Request) -> Response:
            form = dict(parse_qsl((await request.body()).decode(errors="replace")))
            experiment = self._named(form.get("scenario"))
            try:
                await run_in_threadpool(act, experiment, form)
            except AgentError as error:
                return await self._page(request, experiment, error)
            if "HX-Request" in request.headers:
                return await self._page(request, experiment)
            return RedirectResponse(lab_url(experiment.name), 303)

        return do

    async def _page(self, request: Request, experiment: Experiment, wrong: AgentError | None = None) -> Response:
        moment: Moment | None = None
        try:
            moment = await run_in_threadpool(lambda: experiment.moment)
        except AgentError as error:
            wrong = error
        is_swapped = "HX-Request" in request.headers  # what is refused is not swapped in, so it is no error there
        return page(
            request,
            "_lab.html" if is_swapped else "lab.html",
            status=200 if wrong is None or is_swapped else 409 if isinstance(wrong, ActOutOfOrder) else 400,
            is_swapped=is_swapped,
            scenario=experiment.name,
            urls={name: lab_url(name) for name in self._experiments},
            moment=moment,
            wrong=wrong,
            places=[] if moment is None else [(of, [*spots]) for of, spots in groupby(moment.spots, lambda s: s.of)],
        )

    def _named(self, name: str | None) -> Experiment:
        if name is None:
            return next(iter(self._experiments.values()))
        if name not in self._experiments:
            raise HTTPException(404)
        return self._experiments[name]
