package relay

// The relay's own topics.
const (
	TopicSinkDisabled      = OperationalPrefix + "sink.disabled"
	TopicSinkRecovered     = OperationalPrefix + "sink.recovered"
	TopicDeadLetterCreated = OperationalPrefix + "deadletter.created"
)

// OperationalTopics returns the relay's own topics with their meaning. They are in no catalog: nobody can publish them,
// and no client of the stream gets them.
func OperationalTopics() []TopicInfo {
	return []TopicInfo{
		{TopicSinkDisabled, "A sink was disabled and keeps its backlog."},
		{TopicSinkRecovered, "A sink that was disabled is enabled again."},
		{TopicDeadLetterCreated, "A delivery was given up and became a dead letter."},
	}
}

func operationalNames() []string {
	var names []string
	for _, t := range OperationalTopics() {
		names = append(names, t.Name)
	}
	return names
}
