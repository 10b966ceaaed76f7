package controller

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/sluice-gpu/sluice/quota/beside"
)

// owner is an entry of managedFields.
func owner(manager, fields string) metav1.ManagedFieldsEntry {
	return metav1.ManagedFieldsEntry{Manager: manager, Subresource: "status", FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(fields)}
}

const (
	admissionFields = `{"f:status":{"f:admission":{".":{},"f:clusterQueue":{}}}}`
	otherFields     = `{"f:status":{"f:conditions":{}}}`
)

func TestWhoAdmittedAWorkloadIsReadFromWhoWroteIt(t *testing.T) {
	priced := map[string]beside.Charge{mainSet: {}}
	for name, c := range map[string]struct {
		by      []metav1.ManagedFieldsEntry
		charges map[string]beside.Charge
		kueue   bool
	}{
		"Kueue":                                {by: []metav1.ManagedFieldsEntry{owner("kueue-admission", admissionFields)}, kueue: true},
		"Kueue, by patches":                    {by: []metav1.ManagedFieldsEntry{owner("kueue", admissionFields)}, kueue: true},
		"here, and Kueue wrote it once more":   {by: []metav1.ManagedFieldsEntry{owner("kueue-admission", admissionFields), owner(FieldOwner, admissionFields)}},
		"Kueue, and something else here":       {by: []metav1.ManagedFieldsEntry{owner(FieldOwner, otherFields), owner("kueue-admission", admissionFields)}, kueue: true},
		"here, and something else Kueue":       {by: []metav1.ManagedFieldsEntry{owner("kueue-admission", otherFields), owner(FieldOwner, admissionFields)}},
		"Kueue, which was told what it costs":  {by: []metav1.ManagedFieldsEntry{owner("kueue-admission", admissionFields)}, charges: priced},
		"a person":                             {by: []metav1.ManagedFieldsEntry{owner("kubectl", admissionFields)}},
		"nobody knows":                         {},
		"what cannot be read is nobody's":      {by: []metav1.ManagedFieldsEntry{owner("kueue-admission", "{")}},
		"something of the name, but no status": {by: []metav1.ManagedFieldsEntry{owner("kueue-admission", `{"f:admission":{}}`)}},
	} {
		wl := &kueue.Workload{ObjectMeta: metav1.ObjectMeta{ManagedFields: c.by}}
		wl.Status.Admission = grant("q", 1)
		if c.charges != nil {
			beside.SetCharges(wl, c.charges)
		}
		if got := byKueue(wl); got != c.kueue {
			t.Errorf("%s: Kueue's %v, want %v", name, got, c.kueue)
		}
	}
}

// Kueue comes in the moment in which this controller starts: nothing that was
// admitted here before is taken for Kueue's.
func TestWhatWasAdmittedBeforeAHaltThatBeginsWithTheStartGoesOn(t *testing.T) {
	s := newStage(t, 2)
	s.caughtUp = false
	s.halt("a manager of Kueue is at work")
	mine := s.workload("mine", 1, true)
	mine.Finalizers, mine.ManagedFields = []string{Finalizer}, []metav1.ManagedFieldsEntry{owner(FieldOwner, admissionFields)}
	theirs := s.workload("theirs", 1, true)
	theirs.Finalizers, theirs.ManagedFields = []string{Finalizer}, []metav1.ManagedFieldsEntry{owner("kueue-admission", admissionFields)}
	used := s.workload("used", 1, true)
	used.Finalizers, used.ManagedFields = theirs.Finalizers, theirs.ManagedFields
	s.pod(used, "used", "n1", false)
	for _, wl := range []*kueue.Workload{mine, theirs, used} {
		s.recallForeign(wl)
	}
	s.caughtUp, s.decides = true, true
	for job, foreign := range map[string]bool{"mine": false, "theirs": true, "used": false} {
		if w := s.work(job); w.foreign != foreign || w.late {
			t.Errorf("%s: admitted elsewhere %v, late %v", job, w.foreign, w.late)
		}
	}
	s.halt("")
	s.pod(theirs, "gated", "", true)
	if _, err := s.place(s.work("theirs").id, mainSet, "gated"); err == nil {
		t.Error("a pod was given a place by another's word")
	}
	if s.counted(theirs) {
		t.Error("it counts as charged here")
	}
}
