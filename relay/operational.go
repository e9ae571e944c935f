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
		{TopicSinkDisabled, "A sink was disabled, since its receiver is gone or only failed for too long; it keeps its backlog."},
		{TopicSinkRecovered, "A sink that was disabled delivers again, since it was resumed or its configuration changed."},
		{TopicDeadLetterCreated, "A sink gave up one or more deliveries, which became dead letters."},
	}
}

func operationalNames() []string {
	var names []string
	for _, t := range OperationalTopics() {
		names = append(names, t.Name)
	}
	return names
}
