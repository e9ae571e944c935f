package relay

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
)

// Topics of messages about the stream itself; see [ResyncMessage] and [CursorMessage].
const (
	TopicResync = OperationalPrefix + "resync"
	TopicCursor = OperationalPrefix + "cursor"
)

// Topics of notifications that the relay publishes about itself.
const (
	TopicSinkDisabled      = OperationalPrefix + "sink.disabled"
	TopicSinkRecovered     = OperationalPrefix + "sink.recovered"
	TopicDeadLetterCreated = OperationalPrefix + "deadletter.created"
	TopicSourceGap         = OperationalPrefix + "source.gap"
)

// OperationalTopics returns the topics of the relay's own notifications. They are not in a [Catalog]: producers
// cannot publish them, and clients of the stream do not receive them.
func OperationalTopics() []TopicInfo {
	return []TopicInfo{
		{TopicSinkDisabled, "A sink was disabled and keeps its backlog."},
		{TopicSinkRecovered, "A sink that was disabled is enabled again."},
		{TopicDeadLetterCreated, "A delivery was given up and became a dead letter."},
		{TopicSourceGap, "Events of an upstream are missing."},
	}
}

// ResyncMessage returns a message that tells a client that notifications may be missing, so it must fetch the
// current state. Set hub for the stream of a hub, or account for the stream of an account. Leave both empty, or use
// the account "*", for a client that reads all accounts.
func ResyncMessage(hub, account, reason string) []byte {
	return streamMessage(TopicResync, hub, account, "gap", reason)
}

// IDHeader is the header of a token response with the ID of the relay. Other relays that copy its notifications list it in
// hubrelay_via, to detect loops.
const IDHeader = "Hubrelay-Relay-Id"

// ResyncEntry returns a [ResyncMessage] for the relay's own log, used if notifications of an upstream are missing.
// via lists the relays that the entry has passed, the first one first. Relays use it to detect loops.
func ResyncEntry(hub, reason string, via []string) []byte {
	data := ResyncMessage(hub, "", reason)
	if len(via) == 0 {
		return data
	}
	list, _ := json.Marshal(via) // Strings always marshal.
	return append(append(append(data[:len(data)-1], `,"hubrelay_via":`...), list...), '}')
}

// CursorMessage returns a message whose only purpose is to carry a cursor. A client without a recent cursor can
// resume from it even if no notification has arrived since it connected.
func CursorMessage(hub, account string) []byte {
	return streamMessage(TopicCursor, hub, account, "", "")
}

func streamMessage(topic, hub, account, state, problem string) []byte {
	if hub != "" || account == "*" {
		account = ""
	}
	var id [12]byte
	_, _ = rand.Read(id[:]) // Read never returns an error.
	none := []string{}
	data, _ := json.Marshal(struct {
		Envelope
		Flags any `json:"flags"`
	}{
		Envelope: Envelope{
			Topic:  topic,
			Object: Object{ID: hex.EncodeToString(id[:]), State: state, Error: problem},
			Context: Context{
				HubID: hub, AccountID: account, Environments: none, DNSZones: none, Clusters: none, Containers: none,
			},
		},
	}) // Strings always marshal.
	return data
}

func operationalNames() []string {
	var names []string
	for _, t := range OperationalTopics() {
		names = append(names, t.Name)
	}
	return names
}
