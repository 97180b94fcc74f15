// Reads partitions to their end with franz-go, and prints each record as a line of JSON.
//
//	franz_reader [-level read_committed] [-group NAME] [-from-ms TIME] ADDRESS TOPIC:PARTITION ...
//
// It reads from the beginning, or from the first record at or after a time. As a member of a group, it subscribes to the
// topics of these partitions, and commits at the end. Markers of transactions are not printed, but tell it where it is.
// If nothing arrives for some time, it fails.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

const patience = 30 * time.Second

type place struct {
	topic     string
	partition int32
}

type header struct {
	Name  string `json:"name"`
	Value []byte `json:"value"`
}

type line struct {
	Topic       string   `json:"topic"`
	Partition   int32    `json:"partition"`
	Offset      int64    `json:"offset"`
	TimestampMs int64    `json:"timestamp_ms"`
	Key         []byte   `json:"key"`
	Value       []byte   `json:"value"`
	Headers     []header `json:"headers"`
}

func main() {
	level := flag.String("level", "read_uncommitted", "isolation level")
	group := flag.String("group", "", "group to join")
	fromMs := flag.Int64("from-ms", -1, "time to start from, in milliseconds")
	flag.Parse()
	places, err := parsePlaces(flag.Args()[1:])
	if err == nil {
		err = run(flag.Arg(0), *level == "read_committed", *group, *fromMs, places)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func parsePlaces(asked []string) ([]place, error) {
	places := []place{}
	for _, text := range asked {
		topic, number, _ := strings.Cut(text, ":")
		partition, err := strconv.ParseInt(number, 10, 32)
		if err != nil {
			return nil, err
		}
		places = append(places, place{topic, int32(partition)})
	}
	return places, nil
}

func run(address string, isCommitted bool, group string, fromMs int64, places []place) error {
	isolation := kgo.ReadUncommitted()
	if isCommitted {
		isolation = kgo.ReadCommitted()
	}
	start := kgo.NewOffset().AtStart()
	if fromMs >= 0 {
		start = kgo.NewOffset().AfterMilli(fromMs)
	}
	options := []kgo.Opt{
		kgo.SeedBrokers(address), kgo.FetchIsolationLevel(isolation), kgo.KeepControlRecords(),
		kgo.ConsumeResetOffset(start),
	}
	starts, topics := map[string]map[int32]kgo.Offset{}, []string{}
	for _, at := range places {
		if starts[at.topic] == nil {
			starts[at.topic] = map[int32]kgo.Offset{}
			topics = append(topics, at.topic)
		}
		starts[at.topic][at.partition] = start
	}
	if group == "" {
		options = append(options, kgo.ConsumePartitions(starts))
	} else {
		options = append(options, kgo.ConsumerGroup(group), kgo.ConsumeTopics(topics...), kgo.DisableAutoCommit())
	}
	client, err := kgo.NewClient(options...)
	if err != nil {
		return err
	}
	defer client.Close()
	ends, err := findEnds(client, isCommitted, topics, places)
	if err != nil {
		return err
	}
	if err := printRecords(client, ends); err != nil {
		return err
	}
	if group == "" {
		return nil
	}
	return client.CommitUncommittedOffsets(context.Background())
}

func findEnds(client *kgo.Client, isCommitted bool, topics []string, places []place) (map[place]int64, error) {
	list := kadm.NewClient(client).ListEndOffsets
	if isCommitted {
		list = kadm.NewClient(client).ListCommittedOffsets
	}
	listed, err := list(context.Background(), topics...)
	if err != nil {
		return nil, err
	}
	ends := map[place]int64{}
	for _, at := range places {
		found, isKnown := listed.Lookup(at.topic, at.partition)
		if !isKnown {
			return nil, fmt.Errorf("%s-%d is not listed", at.topic, at.partition)
		}
		if found.Err != nil {
			return nil, found.Err
		}
		if found.Offset > 0 {
			ends[at] = found.Offset
		}
	}
	return ends, nil
}

func printRecords(client *kgo.Client, ends map[place]int64) error {
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	encoder := json.NewEncoder(out)
	for len(ends) > 0 {
		waiting, cancel := context.WithTimeout(context.Background(), patience)
		fetches := client.PollFetches(waiting)
		isLate := errors.Is(waiting.Err(), context.DeadlineExceeded)
		cancel()
		if isLate {
			return fmt.Errorf("nothing arrived, and these ends are not reached: %v", ends)
		}
		if err := fetches.Err(); err != nil {
			return err
		}
		for _, record := range fetches.Records() {
			if !record.Attrs.IsControl() {
				if err := encoder.Encode(asLine(record)); err != nil {
					return err
				}
			}
			at := place{record.Topic, record.Partition}
			if end, isOpen := ends[at]; isOpen && record.Offset+1 >= end {
				delete(ends, at)
			}
		}
	}
	return nil
}

func asLine(record *kgo.Record) line {
	headers := []header{}
	for _, each := range record.Headers {
		headers = append(headers, header{each.Key, each.Value})
	}
	return line{
		record.Topic, record.Partition, record.Offset, record.Timestamp.UnixMilli(), record.Key, record.Value, headers,
	}
}
