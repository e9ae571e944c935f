// Package tmpl renders what operators write as Go templates: bodies of webhooks, texts and blocks of Slack, mail.
// docs/templates.md is its manual.
//
// The language is text/template, or html/template where HTML is made, with the functions of Alertmanager under the same
// names, with the same arguments and meaning. Whatever a template does, a rendering ends: its steps, the depth of its
// calls, what its functions read and write, and its output are bounded by numbers that are the same on every machine,
// so that a template which fails does so everywhere. Time is bounded, too, but only as a last resort, and what it ends
// may be tried again.
//
// Nothing here knows of a sink or of what a rendering is for.
package tmpl
