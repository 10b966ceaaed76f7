// Package reach counts what a value keeps in memory, for tests that say that nothing
// is left behind of what came and went. It follows pointers, interfaces, maps, slices
// and fields, exported or not, and changes nothing.
package reach

import "reflect"

// Count is how many entries of maps and elements of slices can be reached from a
// value, each pointer followed once. Functions, channels and what lies between the
// length and the capacity of a slice count for nothing.
func Count(x any) int {
	w := walk{seen: map[seen]bool{}}
	w.value(reflect.ValueOf(x))
	return w.count
}

type seen struct {
	at uintptr
	of reflect.Type
}

type walk struct {
	seen  map[seen]bool
	count int
}

// first says whether a pointer is met for the first time.
func (w *walk) first(v reflect.Value) bool {
	s := seen{v.Pointer(), v.Type()}
	if v.IsNil() || w.seen[s] {
		return false
	}
	w.seen[s] = true
	return true
}

func (w *walk) value(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if w.first(v) {
			w.value(v.Elem())
		}
	case reflect.Interface:
		if !v.IsNil() {
			w.value(v.Elem())
		}
	case reflect.Struct:
		for i := range v.NumField() {
			w.value(v.Field(i))
		}
	case reflect.Map:
		if !w.first(v) {
			return
		}
		w.count += v.Len()
		for it := v.MapRange(); it.Next(); {
			w.value(it.Key())
			w.value(it.Value())
		}
	case reflect.Slice:
		w.count += v.Len()
		if !plain(v.Type().Elem()) {
			for i := range v.Len() {
				w.value(v.Index(i))
			}
		}
	case reflect.Array:
		if !plain(v.Type().Elem()) {
			for i := range v.Len() {
				w.value(v.Index(i))
			}
		}
	}
}

// plain says that nothing can be reached from values of a type.
func plain(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Pointer, reflect.Interface, reflect.Struct, reflect.Map, reflect.Slice, reflect.Array:
		return false
	}
	return true
}
