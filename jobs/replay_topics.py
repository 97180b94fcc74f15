"""replay_topics: which record comes next, of several partitions in the order of their timestamps?

Writes archived records in the order in which Kafka Streams would process them: always the partition whose next record
has the least timestamp, offsets in order within each. With --name, a later run goes on where this one ended. See
docs/how-to/replay-topics.md.
"""

from __future__ import annotations

import sys

from coldlog.launch.entry_point import job_argument_parser, run_job
from coldlog.replay.runs.replay_job import add_replay_options, replay_topics

if __name__ == "__main__":
    parser = job_argument_parser(__doc__)
    add_replay_options(parser)
    sys.exit(run_job(replay_topics, parser))
