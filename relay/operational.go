package relay

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
)

// The topics of what a client of the stream is told about that stream; see [ResyncMessage] and [CursorMessage].
const (
	TopicResync = OperationalPrefix + "resync"
	TopicCursor = OperationalPrefix + "cursor"
)

// The relay's own topics.
const (
	TopicSinkDisabled      = OperationalPrefix + "sink.disabled"
	TopicSinkRecovered     = OperationalPrefix + "sink.recovered"
	TopicDeadLetterCreated = OperationalPrefix + "deadletter.created"
	TopicSourceGap         = OperationalPrefix + "source.gap"
)

// OperationalTopics returns the relay's own topics with their meaning. They are in no catalog: nobody can publish them,
// and no client of the stream gets them.
func OperationalTopics() []TopicInfo {
	return []TopicInfo{
		{TopicSinkDisabled, "A sink was disabled and keeps its backlog."},
		{TopicSinkRecovered, "A sink that was disabled is enabled again."},
		{TopicDeadLetterCreated, "A delivery was given up and became a dead letter."},
		{TopicSourceGap, "Something that an upstream had sent is missing."},
	}
}

// ResyncMessage returns the notification that tells a client of the stream that it may have missed something: it should look at
// how things are now. It concerns the hub or, where that is empty, the account; both are empty, or the account is *, for a
// client that reads them all.
func ResyncMessage(hub, account, why string) []byte {
	return streamMessage(TopicResync, hub, account, "gap", why)
}

// ResyncEntry returns what a relay puts into its own log where something of an upstream is missing, as [ResyncMessage] does. It lists
// the relays that it has come through, the first first, so that it does not go round in circles.
func ResyncEntry(hub, why string, via []string) []byte {
	data := ResyncMessage(hub, "", why)
	if len(via) == 0 {
		return data
	}
	list, _ := json.Marshal(via) // strings only
	return append(append(append(data[:len(data)-1], `,"hubrelay_via":`...), list...), '}')
}

// CursorMessage returns a message for a client of the stream that wants a cursor and has none yet, so that it can come back to where it
// began although nothing has come, or only an old one. It says nothing but the cursor that is added to it.
func CursorMessage(hub, account string) []byte {
	return streamMessage(TopicCursor, hub, account, "", "")
}

func streamMessage(topic, hub, account, state, problem string) []byte {
	if hub != "" || account == "*" {
		account = ""
	}
	var id [12]byte
	_, _ = rand.Read(id[:]) // never fails, by its documentation
	none := []string{}
	data, _ := json.Marshal(struct {
		Envelope
		Flags any `json:"flags"`
	}{
		Envelope: Envelope{
			Topic:   topic,
			Object:  Object{ID: hex.EncodeToString(id[:]), State: state, Error: problem},
			Context: Context{HubID: hub, AccountID: account, Environments: none, DNSZones: none, Clusters: none, Containers: none},
		},
	}) // strings only
	return data
}

func operationalNames() []string {
	var names []string
	for _, t := range OperationalTopics() {
		names = append(names, t.Name)
	}
	return names
}
