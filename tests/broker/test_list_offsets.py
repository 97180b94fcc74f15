"""ListOffsets of a warehouse, beside a broker's: with no local tier, its log directory, and itself, act after act."""

from __future__ import annotations

import argparse
import io
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

import pytest
from kafka.protocol.consumer import ListOffsetsRequest
from pyspark.sql import SparkSession

from broker.offset_questions import (
    NAMES_THE_LATEST,
    NEWEST_ASKED,
    NOTHING_TOLD,
    SPECIALS,
    Log,
    Place,
    Question,
    Told,
    ask_broker,
    ask_of_one_request,
    read_log,
)
from broker.offsets_play import (
    AGAIN,
    BARE,
    CUTS,
    FRESH,
    KEPT,
    LOSES_CUTS,
    OPEN,
    PAID,
    PLACES,
    PLAIN,
    YOUNG,
    OffsetsPlay,
    offsets_play,
)
from broker.scenario import BRIEF, ORDERS, START_MS, admin
from broker.tiered_broker import KAFKA_VERSION, TieredBroker, is_since, running_broker
from coldlog.brokers.kafka_client import open_cluster
from coldlog.formats.limits import DecodeLimits
from coldlog.indexing.pipeline import run_pipeline
from coldlog.lookups.list_offsets import LookupOptions
from coldlog.lookups.local.live_broker_tier import LiveBrokerTier
from coldlog.lookups.local.local_tier import LocalTier
from coldlog.lookups.local.log_directory_tier import LogDirectoryTier
from coldlog.lookups.offset_lookup import list_offsets
from coldlog.lookups.requests.rows import requests_from_rows
from coldlog.model.list_offsets import NEWEST_VERSION, UNKNOWN_EPOCH, ErrorCode, SpecialTimestamp
from coldlog.reader import OffsetReader
from coldlog.runtime.console import Console
from coldlog.runtime.job import Job
from coldlog.runtime.settings_sources import load_settings
from coldlog.tables.delta.warehouse import Warehouse

pytestmark = [pytest.mark.usefixtures("kafka_leftovers"), pytest.mark.timeout(1200)]

FIRST, RESTARTED, WRITTEN, CUT, ANEW, LAST = "indexed", "restarted", "written", "cut", "made anew", "indexed again"
ACTS = (FIRST, RESTARTED, WRITTEN, CUT, ANEW, LAST)
CURRENT = (FIRST, RESTARTED, LAST)
"""Acts in which the index knows all that is archived."""
NONE, FILES, LIVE = "none", "files", "live"
TIERED = frozenset({(ORDERS, 0), (ORDERS, 1), (KEPT, 0), (PAID, 0), (AGAIN, 0), (BRIEF, 0)})
_PATIENCE_MS = 600_000
"""Thousands of questions at once take a busy machine longer than the 30 s of the settings."""
LIMITS = DecodeLimits(max_batch_bytes=128 << 20, max_decompressed_bytes=128 << 20)
REQUIRED, STALE, OPEN_ENDED, UNKNOWN, UNSUPPORTED = (
    ErrorCode.LOCAL_REQUIRED,
    ErrorCode.STALE_INDEX,
    ErrorCode.OPEN_TRANSACTION,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNSUPPORTED_VERSION,
)
NOT_THERE = (("nowhere", 0), (ORDERS, 7))
NAMELESS = -7
"""A negative timestamp that no version knows."""
IS_STRICT = is_since(KAFKA_VERSION, (3, 9))
"""Older brokers check less: a negative timestamp that the request's version does not know is looked for as a time."""
OF_THE_TIER = (SpecialTimestamp.LATEST_TIERED, SpecialTimestamp.EARLIEST_PENDING_UPLOAD)


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """One partition, as the broker and its files have it: offsets of ends are exclusive."""

    log: Log
    log_start: int
    local_base: int
    end: int
    stable_end: int
    leader_epoch: int
    tiered: int | None

    def fetchable(self, question: Question) -> int:
        return self.stable_end if question.is_committed else self.end


@dataclass(frozen=True, slots=True, kw_only=True)
class Archived:
    """What an index that was made now knows of one partition."""

    log: Log
    offsets: range
    stable_end: int
    leader_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """Questions and answers of one act; ours by tier and whether they are the broker's by wish, from the reader."""

    act: str
    questions: Sequence[Question]
    told: Sequence[Told]
    ours: Mapping[tuple[str, bool], Sequence[Told]]
    in_bulk: Mapping[str, Sequence[Told]]
    local_starts: Sequence[object]
    states: Mapping[Place, State]
    archived: Mapping[Place, Archived]

    def rows(self, tier: str, compatible: bool) -> Iterator[tuple[Question, Told, Told]]:
        """Question, the broker's answer, ours; of a topic that is another one by now there is no index."""
        for question, told, ours in zip(self.questions, self.told, self.ours[tier, compatible], strict=True):
            if not self.is_another(question):
                yield question, told, ours

    def is_another(self, question: Question) -> bool:
        return self.act == ANEW and question.place == (AGAIN, 0)


@dataclass(slots=True, kw_only=True)
class Comparisons:
    """Asks everybody everything."""

    play: OffsetsPlay
    spark: SparkSession
    location: Path
    tiers: dict[str, LocalTier | None]
    archived: dict[Place, Archived] = field(default_factory=dict)
    found: dict[str, Compared] = field(default_factory=dict)

    def index(self) -> None:
        """run_pipeline, with the live topic and log starts from the broker."""
        broker = self.play.broker
        settings = load_settings(
            "local",
            [
                f"archive.uri={broker.tier}",
                f"warehouse.uri={self.location}",
                "metadata.source=topic",
                f"metadata.bootstrap_servers={broker.bootstrap_servers}",
                f"log_start_offsets.bootstrap_servers={broker.bootstrap_servers}",
            ],
        )
        console = Console(progress=io.StringIO(), results=io.StringIO())
        run_pipeline(Job(spark=self.spark, settings=settings, arguments=argparse.Namespace(), console=console))
        states = self._states()
        self.archived = {place: self._archived(place, state) for place, state in states.items() if state.tiered}

    def compare(self, act: str, *, times: int, mixed: int) -> None:
        """So many times, and so many questions of any version, epoch and level, of each partition."""
        states, chance = self._states(), self.play.scenario.chance
        questions = [Question(place=place, timestamp_ms=5) for place in NOT_THERE]
        questions += [Question(place=NOT_THERE[1], timestamp_ms=special) for special in (*SPECIALS, NAMELESS)]
        for place, state in states.items():
            near = sorted({at + by for at in state.log.timestamps_ms.tolist() for by in (-1, 0, 1)})
            asked_ms = [*SPECIALS, 0, START_MS - 1, 1 << 62, *chance.sample(near, min(times, len(near)))]
            questions += [
                Question(place=place, timestamp_ms=at, is_committed=level)
                for at, level in product(asked_ms, (False, True))
            ]
            questions += chance.sample(_any_questions(place, state.leader_epoch), mixed)
        self.found[act] = self._ask(act, questions, states)

    def _ask(self, act: str, questions: Sequence[Question], states: dict[Place, State]) -> Compared:
        told = _as_refused_since_3_9(questions, ask_broker(self.play.broker, questions))
        rows, warehouse = [each.row for each in questions], Warehouse(spark=self.spark, uri=str(self.location))
        ours, in_bulk, local_starts = {}, {}, []
        for (name, tier), compatible in product(self.tiers.items(), (False, True)):
            options = LookupOptions(local=tier, broker_compatible=compatible, timeout_ms=_PATIENCE_MS)
            with OffsetReader(str(self.location), options) as reader:
                answers = reader.list_offsets(rows)
            ours[name, compatible] = [_ours(each) for each in answers]
            if not compatible:
                table = list_offsets(warehouse, requests_from_rows(rows), options)
                in_bulk[name] = [_ours(each) for each in table.to_pylist()]
                assert [each["local_start_offset"] for each in answers] == table["local_start_offset"].to_pylist()
            if name == NONE:
                local_starts = [each["local_start_offset"] for each in answers]
        return Compared(
            act=act,
            questions=questions,
            told=told,
            ours=ours,
            in_bulk=in_bulk,
            local_starts=local_starts,
            states=states,
            archived=self.archived,
        )

    def _states(self) -> dict[Place, State]:
        broker = self.play.broker
        latest, earliest = (
            _by_place(ask_broker(broker, [Question(place=place, timestamp_ms=special) for place in PLACES]))
            for special in (SpecialTimestamp.LATEST, SpecialTimestamp.EARLIEST)
        )
        asked = [Question(place=place, timestamp_ms=SpecialTimestamp.LATEST, is_committed=True) for place in PLACES]
        stable = _by_place(ask_broker(broker, asked))
        return {
            place: State(
                log=read_log(broker, place),
                log_start=_number(earliest[place][1]),
                local_base=broker.local_logs(*place)[0],
                end=_number(latest[place][1]),
                stable_end=_number(stable[place][1]),
                leader_epoch=_number(latest[place][3]),
                tiered=_latest_tiered(broker, place),
            )
            for place in PLACES
        }

    def _archived(self, place: Place, state: State) -> Archived:
        end = _number(state.tiered) + 1
        pattern = f"*/{place[0]}-{place[1]}-*/*.leader_epoch_checkpoint"
        newest = max(self.play.broker.tier.glob(pattern), key=lambda path: path.name)
        return Archived(
            log=state.log,
            offsets=range(state.log_start, end),
            stable_end=state.log.stable_offset(end),
            leader_epoch=int(newest.read_text().split()[-2]),
        )


def _any_questions(place: Place, leader_epoch: int) -> list[Question]:
    asked_ms, epochs = (
        (*SpecialTimestamp, NAMELESS, START_MS + 40_000),
        (UNKNOWN_EPOCH, leader_epoch, leader_epoch - 1, leader_epoch + 1),
    )
    return [
        Question(place=place, timestamp_ms=at, version=version, is_committed=level, leader_epoch=epoch)
        for at, version, level, epoch in product(asked_ms, range(1, NEWEST_ASKED + 1), (False, True), epochs)
        # Older requests carry neither.
        if (version >= 4 or epoch == UNKNOWN_EPOCH) and (version >= 2 or not level)
    ]


def _as_refused_since_3_9(questions: Sequence[Question], told: Sequence[Told]) -> list[Told]:
    """The broker's answers; of an older broker, what later ones refuse is refused."""
    return [
        answer if IS_STRICT or _is_known(each) else _refused(UNSUPPORTED)
        for each, answer in zip(questions, told, strict=True)
    ]


def _is_known(question: Question) -> bool:
    """Whether the request's version knows the timestamp; all know times."""
    at = question.timestamp_ms
    return at >= 0 or (at != NAMELESS and SpecialTimestamp(at).since_version <= question.version)


def _latest_tiered(broker: TieredBroker, place: Place) -> int | None:
    """As the bucket has it, since brokers can be asked from Kafka 3.9 on only."""
    last_base = max(broker.tiered_logs(*place), default=None)
    if last_base is None:
        return None
    return min(base for base in broker.local_logs(*place) if base > last_base) - 1


def _by_place(told: Sequence[Told]) -> dict[Place, Told]:
    return dict(zip(PLACES, told, strict=True))


def _number(value: int | None) -> int:
    assert value is not None
    return value


def _ours(row: Mapping[str, object]) -> Told:
    return row["error_code"], row["offset"], row["offset_timestamp_ms"], row["leader_epoch"]  # type: ignore[return-value]


@pytest.fixture(scope="module")
def comparisons(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Comparisons]:
    """A broker of its own, since this play restarts it, with a comparison behind each act."""
    folder = tmp_path_factory.mktemp("list-offsets")
    with running_broker(folder / "broker") as broker, offsets_play(broker) as play:
        live = LiveBrokerTier(open_cluster(broker.bootstrap_servers, 120_000, None))
        tiers: dict[str, LocalTier | None] = {NONE: None, FILES: LogDirectoryTier(str(broker.data), LIMITS), LIVE: live}
        asking = Comparisons(play=play, spark=spark, location=folder / "warehouse", tiers=tiers)
        acts: dict[str, Callable[[], object]] = {
            FIRST: lambda: (play.begin(), asking.index()),  # type: ignore[func-returns-value]
            RESTARTED: play.restart,
            WRITTEN: play.write_more,
            CUT: play.cut_more,
            ANEW: play.make_anew,
            LAST: asking.index,
        }
        for act, perform in acts.items():
            perform()
            many = act in (FIRST, LAST)
            asking.compare(act, times=80 if many else 30, mixed=120 if many else 50)
        yield asking
        live.close()


@pytest.fixture(params=ACTS)
def compared(request: pytest.FixtureRequest, comparisons: Comparisons) -> Compared:
    """One act's."""
    return comparisons.found[request.param]


def _hidden(told: Told, question: Question) -> Told:
    return told if question.version >= 4 else (*told[:3], None)


def _bounded(told: Told, end: int) -> Told:
    return NOTHING_TOLD if told[1] is not None and told[1] >= end else told


def _refused(error: ErrorCode | int) -> Told:
    return int(error), None, None, None


def _wrong(
    rows: Iterator[tuple[Question, Told, Told]], expected: Callable[[Question, Told], Told]
) -> list[tuple[Question, Told, Told, Told]]:
    """Question, what was expected, our answer, the broker's."""
    found = ((question, expected(question, told), ours, told) for question, told, ours in rows)
    return [each for each in found if each[1] != each[2]][:20]


def expected_of_archive(compared: Compared, question: Question, told: Told) -> Told:
    """What the archive alone can say."""
    if told[0] == UNSUPPORTED or question.place not in compared.archived:
        return _refused(told[0] if told[0] == UNSUPPORTED else UNKNOWN)
    archived = compared.archived[question.place]
    if question.leader_epoch >= 0 and question.leader_epoch != archived.leader_epoch:
        is_older = question.leader_epoch < archived.leader_epoch
        return _refused(ErrorCode.FENCED_LEADER_EPOCH if is_older else ErrorCode.UNKNOWN_LEADER_EPOCH)
    if question.timestamp_ms in (SpecialTimestamp.LATEST, SpecialTimestamp.EARLIEST_LOCAL):
        return _refused(REQUIRED)
    if question.timestamp_ms == SpecialTimestamp.MAX_TIMESTAMP:
        found = archived.log.latest(archived.offsets)
    elif question.timestamp_ms < 0:
        # The broker has another leader by now, and fences by it.
        place = Question(place=question.place, timestamp_ms=question.timestamp_ms)
        return _hidden(compared.told[compared.questions.index(place)], question)
    else:
        found = archived.log.first_at_or_after(question.timestamp_ms, archived.offsets)
    if found[1] is None:
        return _refused(REQUIRED)
    return (
        _refused(OPEN_ENDED) if question.is_committed and found[1] >= archived.stable_end else _hidden(found, question)
    )


def exact(state: State, question: Question) -> Told:
    """By what the logs hold: the first that is late enough, if it may be read."""
    found = state.log.first_at_or_after(question.timestamp_ms, range(state.log_start, state.end))
    return _hidden(_bounded(found, state.fetchable(question)), question)


def expected_with_tier(compared: Compared, tier: str, compatible: bool, question: Question, told: Told) -> Told:
    """The broker's answer, but for what is told in the docstring of list_offsets."""
    if told[0]:
        return _refused(told[0])
    state, archived = compared.states[question.place], compared.archived.get(question.place)
    if question.timestamp_ms == SpecialTimestamp.MAX_TIMESTAMP:
        found = state.log.latest(range(min(state.log_start, state.local_base), state.end))
        if tier == LIVE and not NAMES_THE_LATEST and not _is_served(state, archived, found):
            assert told[2] in (found[2], None)
            return told
        return _hidden(_bounded(found, state.fetchable(question)), question)
    if question.timestamp_ms == SpecialTimestamp.EARLIEST_PENDING_UPLOAD:
        may_have_no_tier = archived is None and tier == FILES
        return _refused(REQUIRED) if may_have_no_tier and state.log_start < state.fetchable(question) else told
    if question.timestamp_ms < 0:
        return told
    if compatible:
        return told
    return exact(state, question) if tier == FILES else _expected_beside_broker(state, archived, question, told)


def _is_served(state: State, archived: Archived | None, found: Told) -> bool:
    """Whether it is the largest of the archive, and the log has it too: nobody else's word is taken then."""
    if archived is None or found[1] is None or found[1] < state.log_start:
        return False
    return archived.log.latest(archived.offsets)[1] == found[1]


def _expected_beside_broker(state: State, archived: Archived | None, question: Question, told: Told) -> Told:
    """The archive's where it has one that the log has too, else the broker's."""
    if archived is None:
        return told
    found = archived.log.first_at_or_after(question.timestamp_ms, archived.offsets)
    if found[1] is None or found[1] < state.log_start:
        return told
    assert _hidden(_bounded(found, state.fetchable(question)), question) == exact(state, question)
    return exact(state, question)


def test_the_play_is_worth_asking(comparisons: Comparisons) -> None:
    first, last = comparisons.found[FIRST], comparisons.found[LAST]
    assert set(first.archived) == TIERED
    assert set(last.archived) == {*TIERED, (FRESH, 0)}
    for place, cut in CUTS.items():
        state = first.states[place]
        assert cut == state.log_start
        is_inside = state.log.offsets[0] < cut
        assert is_inside == (place[0] == PLAIN or not LOSES_CUTS), "the log start lies inside a segment"
    assert first.states[ORDERS, 0].local_base > first.states[ORDERS, 0].log_start
    assert first.states[KEPT, 0].local_base < first.states[KEPT, 0].log_start or LOSES_CUTS
    for place in ((PAID, 0), (OPEN, 0)):
        assert first.states[place].stable_end < first.states[place].end
    # The archive ends in a transaction whose marker is not archived.
    assert first.archived[PAID, 0].stable_end < first.archived[PAID, 0].offsets.stop
    for place in ((FRESH, 0), (BARE, 0)):
        assert first.states[place].end == 0
    assert first.states[YOUNG, 0].tiered is None
    assert {state.leader_epoch for state in last.states.values()} != {0}
    assert len(set(last.archived[ORDERS, 0].log.leader_epochs.tolist())) > 1
    # Behind the back of the index: archived and gone from the broker, cut, another topic.
    assert comparisons.found[WRITTEN].states[ORDERS, 0].local_base > first.archived[ORDERS, 0].offsets.stop
    assert comparisons.found[CUT].states[ORDERS, 1].log_start > first.archived[ORDERS, 1].offsets.stop
    assert comparisons.found[ANEW].states[AGAIN, 0].end > first.states[AGAIN, 0].end


def test_broker_is_asked_by_the_newest_version_that_it_knows(comparisons: Comparisons) -> None:
    with admin(comparisons.play.broker) as client:
        assert client._manager.broker_version_data.api_version(ListOffsetsRequest) == NEWEST_ASKED


def test_what_is_tiered_is_told_beside_brokers_that_are_too_old_to_tell_it_too(comparisons: Comparisons) -> None:
    last, asked = comparisons.found[LAST], product(comparisons.found[LAST].archived, OF_THE_TIER)
    rows = [(*place, int(special), UNKNOWN_EPOCH, None, -1, NEWEST_VERSION) for place, special in asked]
    with OffsetReader(str(comparisons.location), LookupOptions(local=comparisons.tiers[LIVE])) as reader:
        ours = [_ours(each)[:2] for each in reader.list_offsets(rows)]
    ends = [_number(last.states[place].tiered) for place in last.archived]
    assert ours == [(ErrorCode.NONE, offset) for end in ends for offset in (end, end + 1)]


def test_logs_hold_what_was_sent(comparisons: Comparisons) -> None:
    scenario = comparisons.play.scenario
    for place, state in comparisons.found[LAST].states.items():
        if place in scenario.sent_ms:
            held = zip(state.log.offsets.tolist(), state.log.timestamps_ms.tolist(), strict=True)
            assert [(offset, at) for offset, at in held if scenario.sent_ms[place][offset] != at] == []
            assert state.end == len(scenario.sent_ms[place])


def test_reader_and_bulk_lookup_answer_alike(compared: Compared) -> None:
    for tier, answers in compared.in_bulk.items():
        assert answers == compared.ours[tier, False]


@pytest.mark.parametrize("tier", [FILES, LIVE])
@pytest.mark.parametrize("compatible", [False, True], ids=["exact", "compatible"])
@pytest.mark.parametrize("act", CURRENT)
def test_with_a_local_tier_every_answer_is_the_brokers(
    comparisons: Comparisons, act: str, compatible: bool, tier: str
) -> None:
    compared = comparisons.found[act]
    wrong = _wrong(
        compared.rows(tier, compatible),
        lambda question, told: expected_with_tier(compared, tier, compatible, question, told),
    )
    assert wrong == []


@pytest.mark.parametrize("compatible", [False, True], ids=["exact", "compatible"])
@pytest.mark.parametrize("act", [WRITTEN, CUT, ANEW])
def test_beside_the_broker_answers_of_an_old_index_are_right(
    comparisons: Comparisons, act: str, compatible: bool
) -> None:
    compared, stale = comparisons.found[act], Counter[Place]()

    def expected(question: Question, told: Told, ours: Told) -> Told:
        if ours[0] == STALE and question.timestamp_ms == SpecialTimestamp.MAX_TIMESTAMP:
            stale[question.place] += 1
            return ours
        return expected_with_tier(compared, LIVE, compatible, question, told)

    rows = compared.rows(LIVE, compatible)
    assert [each for each in rows if each[2] != expected(*each)][:20] == []
    # What was archived and left the broker since.
    assert set(stale) == {(ORDERS, 0), (ORDERS, 1), (FRESH, 0)}


@pytest.mark.parametrize("act", [WRITTEN, CUT, ANEW])
def test_beside_the_log_directory_answers_of_an_old_index_are_right_or_stale(
    comparisons: Comparisons, act: str
) -> None:
    compared, stale, wrong = comparisons.found[act], Counter[Place](), []
    first = comparisons.found[FIRST]
    as_indexed = dict(zip(first.questions, first.told, strict=True))
    for question, told, ours in compared.rows(FILES, False):
        if ours[0] == STALE:
            stale[question.place] += 1
        elif ours != expected_with_tier(compared, FILES, False, question, told):
            # What was archived since and is still in the directory cannot be seen.
            before = as_indexed.get(Question(place=question.place, timestamp_ms=question.timestamp_ms))
            is_unseen = question.timestamp_ms in OF_THE_TIER and question.place == (KEPT, 0)
            if not is_unseen or before is None or ours[1] != before[1]:
                wrong.append((question, told, ours))
    assert wrong[:20] == []
    assert {(ORDERS, 0), (FRESH, 0)} <= set(stale) <= {(ORDERS, 0), (ORDERS, 1), (FRESH, 0)}


def test_without_a_local_tier_the_archives_answers_are_right_and_the_rest_is_said_to_be_local(
    comparisons: Comparisons,
) -> None:
    errors: Counter[int] = Counter()
    for act in CURRENT:
        compared = comparisons.found[act]
        wrong = _wrong(
            compared.rows(NONE, False),
            lambda question, told, of=compared: expected_of_archive(of, question, told),  # type: ignore[misc]
        )
        assert wrong == []
        answers = zip(compared.questions, compared.ours[NONE, False], compared.local_starts, strict=True)
        for question, ours, local_start in answers:
            errors[ours[0]] += 1
            if ours[0] == REQUIRED:
                assert local_start == compared.archived[question.place].offsets.stop
            if ours[0] == ErrorCode.NONE and question.timestamp_ms >= 0:
                assert ours == exact(compared.states[question.place], question)
    assert min(errors[each] for each in (ErrorCode.NONE, REQUIRED, OPEN_ENDED, UNKNOWN, UNSUPPORTED)) > 0
    assert min(errors[each] for each in (ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_LEADER_EPOCH)) > 0


def test_the_broker_differs_where_it_stops_at_the_first_segment_and_nowhere_else(comparisons: Comparisons) -> None:
    """Where its answer is not the first that was sent, a segment promised one by a record below the log start."""
    differing: Counter[Place] = Counter()
    for compared in comparisons.found.values():
        for question, told in zip(compared.questions, compared.told, strict=True):
            if question.timestamp_ms >= 0 and not told[0]:
                state = compared.states[question.place]
                if told != exact(state, question):
                    differing[question.place] += 1
                    below = state.log.latest(range(state.log_start))
                    assert below[2] is not None
                    assert below[2] >= question.timestamp_ms
    at_least = {(PLAIN, 1)} if LOSES_CUTS else {(ORDERS, 0), (KEPT, 0), (PLAIN, 1)}
    at_most = at_least | ({(PLAIN, 0)} if LOSES_CUTS else {(ORDERS, 1), (PLAIN, 0)})
    assert at_least <= set(differing) <= at_most


def test_kafkas_own_client_is_told_the_same(comparisons: Comparisons) -> None:
    last, broker = comparisons.found[LAST], comparisons.play.broker
    middle = START_MS + 150_000
    # The tool knows all names since Kafka 3.9.
    names = {each: each.name.lower().replace("_", "-") if IS_STRICT else str(int(each)) for each in SPECIALS}
    asked = {names[each]: int(each) for each in SPECIALS} | {str(middle): middle}
    questions = [Question(place=place, timestamp_ms=at) for at in asked.values() for place in PLACES]
    with OffsetReader(str(comparisons.location), LookupOptions(local=comparisons.tiers[LIVE])) as reader:
        ours = [_ours(each) for each in reader.list_offsets([each.row for each in questions])]
    told = ask_broker(broker, questions)
    shown = {at: broker.offsets_as_kafka_tells(name) for name, at in asked.items()}
    for question, by_protocol, own in zip(questions, told, ours, strict=True):
        assert shown[question.timestamp_ms].get(question.place) == by_protocol[1]
        assert own == expected_with_tier(last, LIVE, False, question, by_protocol)
    assert len(questions) == (len(SPECIALS) + 1) * len(PLACES)


def test_request_that_names_a_partition_twice_is_refused_as_the_broker_does(comparisons: Comparisons) -> None:
    places = [(ORDERS, 1), (PLAIN, 0), (ORDERS, 1)]
    told = ask_of_one_request(comparisons.play.broker, places, START_MS)
    rows = [(*place, START_MS, UNKNOWN_EPOCH, None, -1, NEWEST_VERSION, "one") for place in places]
    with OffsetReader(str(comparisons.location), LookupOptions(local=comparisons.tiers[LIVE])) as reader:
        ours = [_ours(each) for each in reader.list_offsets(rows)]
    # Before Kafka 4.0 a broker answers each time that it is named, as we do.
    assert Counter(told) == Counter(ours[:2] if is_since(KAFKA_VERSION, (4, 0)) else ours)
    assert ours[0] == ours[2] == _refused(ErrorCode.INVALID_REQUEST)


@pytest.mark.parametrize("tier", [FILES, LIVE])
def test_index_of_a_topic_that_was_made_anew_is_not_taken_for_it(comparisons: Comparisons, tier: str) -> None:
    compared = comparisons.found[ANEW]
    rows = zip(compared.questions, compared.told, compared.ours[tier, False], strict=True)
    another = [(question, told, ours) for question, told, ours in rows if compared.is_another(question)]
    wrong = [
        (question, told, ours)
        for question, told, ours in another
        if question.timestamp_ms != SpecialTimestamp.MAX_TIMESTAMP and ours not in (told, _refused(STALE))
    ]
    assert wrong == []


def test_thousands_of_answers_were_compared(comparisons: Comparisons, capsys: pytest.CaptureFixture[str]) -> None:
    counts: Counter[str] = Counter()
    for compared in comparisons.found.values():
        for question in compared.questions:
            special = question.timestamp_ms in tuple(SpecialTimestamp)
            kind = (
                SpecialTimestamp(question.timestamp_ms).name
                if special
                else "time"
                if question.timestamp_ms >= 0
                else "none"
            )
            counts[kind] += len(compared.ours) + len(compared.in_bulk)
    with capsys.disabled():
        print(dict(counts), {act: len(each.questions) for act, each in comparisons.found.items()})
    assert counts["time"] > 10_000
    assert min(counts[each.name] for each in SPECIALS) > 1_000
