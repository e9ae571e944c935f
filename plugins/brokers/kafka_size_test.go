package brokers

import (
	"bytes"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
)

// rejectLargeBatches makes a cluster reject batches of more than maxBytes with a code, like Kafka with a small
// max.message.bytes. It returns the number of rejected batches with several records, and the number of those with one.
func rejectLargeBatches(t *testing.T, cluster *kfake.Cluster, maxBytes int, code int16) (several, one *atomic.Int64) {
	t.Helper()
	several, one = &atomic.Int64{}, &atomic.Int64{}
	cluster.ControlKey(int16(kmsg.Produce), func(k kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		p, _ := k.(*kmsg.ProduceRequest)
		topic := &p.Topics[0]
		partition := &topic.Partitions[0]
		if len(p.Topics) > 1 || len(topic.Partitions) > 1 {
			t.Error("a request has several partitions, want one")
		}
		if len(partition.Records) <= maxBytes {
			return nil, nil, false
		}
		var batch kmsg.RecordBatch
		if err := batch.ReadFrom(partition.Records); err != nil {
			t.Error(err)
		}
		if batch.NumRecords > 1 {
			several.Add(1)
		} else {
			one.Add(1)
		}
		rejected := kmsg.NewProduceResponseTopicPartition()
		rejected.Partition, rejected.ErrorCode = partition.Partition, code
		response := kmsg.NewProduceResponseTopic()
		response.Topic, response.TopicID = topic.Topic, topic.TopicID
		response.Partitions = append(response.Partitions, rejected)
		out, _ := p.ResponseKind().(*kmsg.ProduceResponse)
		out.Topics = append(out.Topics, response)
		return out, nil, true
	})
	return several, one
}

// TestKafka_BatchTooLargeForBroker expects only the record that the broker rejects alone to be a permanent failure.
func TestKafka_BatchTooLargeForBroker(t *testing.T) {
	t.Parallel()
	for setting, rejection := range map[string]*kerr.Error{
		"max.message.bytes": kerr.MessageTooLarge, "segment.bytes": kerr.RecordListTooLarge,
	} {
		t.Run(setting, func(t *testing.T) {
			t.Parallel()
			testBatchTooLarge(t, setting, rejection.Code)
		})
	}
}

// testBatchTooLarge rejects large batches with a code that is about a setting of the topic.
func testBatchTooLarge(t *testing.T, setting string, code int16) {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "hubrelay"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	several, one := rejectLargeBatches(t, cluster, 4096, code)
	r := rig{
		config: Config{Broker: Kafka, Addresses: cluster.ListenAddrs()},
		read:   newKafkaReader(t, cluster.ListenAddrs(), nil),
	}
	const perRound = 20 // small deliveries
	want := map[string]relay.Delivery{}
	round := func() {
		s := startSink(t, r.config) // a new client sends the records in one batch, after it has read the metadata
		var wg sync.WaitGroup
		large := newDelivery(1_000_000 + len(want))
		large.Notifications[0].Data = append(large.Notifications[0].Data, bytes.Repeat([]byte(" "), 5000)...)
		wg.Go(func() {
			err := r.deliver(t, s, large)
			if outcome, _ := relay.Classify(err); outcome != relay.OutcomePermanent ||
				!strings.Contains(err.Error(), setting) {
				t.Errorf("large record: got %v, want a permanent failure about %s", err, setting)
			}
		})
		for range perRound {
			d := newDelivery(len(want))
			want[d.ID] = d
			wg.Go(func() {
				if err := r.deliver(t, s, d); err != nil {
					t.Errorf("small record: got %v", err)
				}
			})
		}
		wg.Wait()
	}
	testkit.WaitFor(t, "the broker rejects a batch of several records", func() bool {
		round()
		return several.Load() > 0
	})
	if one.Load() == 0 {
		t.Fatal("got no rejected batch of one record, want the large record alone")
	}
	if !t.Failed() { // it would wait for the records that were not published
		r.waitForAll(t, want)
	}
}
