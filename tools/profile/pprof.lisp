;;;; A profile's stacks for other tools, in two formats. Folded: a line for each stack with its
;;;; callers first (flamegraph.pl, speedscope, inferno). pprof: profile.proto, which `go tool pprof`
;;;; reads; a sample in it is a stack of locations, the innermost first, with the number of samples
;;;; and their nanoseconds. Both texts are made from the tree of the flame graph.

(in-package #:clgrpc.profile)

(defun map-stacks (function root)
  "Call FUNCTION with each stack of the tree ROOT, JSON, a list of names, innermost first, and with
the nanoseconds of that stack itself."
  (declare (type function function))
  (labels ((visit (node stack)
             (let* ((children (or (member-of node "children") #()))
                    (own (- (member-of node "ns") (total-ns children)))
                    (stack (cons (member-of node "name") stack)))
               (when (plusp own) (funcall function stack own))
               (map nil (lambda (child) (visit child stack)) children))))
    (map nil (lambda (child) (visit child '())) (or (member-of root "children") #()))))

(defun profile-stacks (profile kind)
  "The tree of stacks of PROFILE of KIND, :cpu or :off-cpu."
  (or (ecase kind
        (:cpu (member-of profile "cpu" "flame"))
        (:off-cpu (member-of profile "events" "offCpu" "flame")))
      (fail "the profile has no stacks of sleeping threads; these need perf and tracefs")))

(defun write-folded (profile stream &key (stacks :cpu))
  "Write the stacks of PROFILE, those of STACKS, :cpu or :off-cpu, to STREAM, folded, with the
microseconds of each."
  (map-stacks (lambda (stack ns)
                (format stream "~{~A~^;~} ~D~%"
                        (mapcar (lambda (name) (substitute #\: #\; (printable-text name)))
                                (reverse stack))
                        (max 1 (round ns 1000))))
              (profile-stacks profile stacks)))

;;; profile.proto

(defun pprof-octets (profile stacks)
  "The STACKS, :cpu or :off-cpu, of PROFILE as a message perftools.profiles.Profile, octets. The
numbers of a location, of its function and of the function's name are the same. Of sleeps only the
time is known, which Go calls delay."
  (let ((strings (make-hash-table :test 'equal))
        (texts (make-array 16 :adjustable t :fill-pointer 0))
        (locations (make-hash-table))
        (samples '())
        (cpu (eq :cpu stacks))
        (period-ns (if (eq :cpu stacks) (member-of profile "cpu" "periodNs") 1)))
    (labels ((text (string)
               (alexandria:ensure-gethash string strings (vector-push-extend string texts)))
             (location (name)
               (let ((number (text name)))
                 (setf (gethash number locations) number)))
             (value-type (type unit)
               (pprof:make-value-type :type (text type) :unit (text unit)))
             (sample (stack ns)
               (push (pprof:make-sample
                      :location-id (mapcar #'location stack)
                      :value (append (when cpu (list (max 1 (round ns period-ns))))
                                     (list (round ns))))
                     samples)))
      (text "")                         ; the first string must be empty
      (map-stacks #'sample (profile-stacks profile stacks))
      (let* ((time (value-type (if cpu "cpu" "delay") "nanoseconds"))
             (types (if cpu (list (value-type "samples" "count") time) (list time)))
             (numbers (loop for number being the hash-keys of locations collect number)))
        (protobuf:serialize
         (pprof:make-profile
          :sample-type types
          :sample (nreverse samples)
          :location (loop for number in numbers
                          collect (pprof:make-location
                                   :id number
                                   :line (list (pprof:make-line :function-id number))))
          :function (loop for number in numbers
                          collect (pprof:make-function :id number :name number))
          :string-table (coerce texts 'list)
          :duration-nanos (round (* +ns-per-second+
                                    (member-of profile (if cpu "cpu" "events") "seconds")))
          :period-type time
          :period (round period-ns)))))))

(defun write-pprof (profile &key (stacks :cpu))
  "Write the STACKS, :cpu or :off-cpu, of PROFILE in pprof's format to the standard output, octets."
  (finish-output)
  (let ((octets (pprof-octets profile stacks))
        (stream (sb-sys:make-fd-stream 1 :output t :element-type '(unsigned-byte 8)
                                         :buffering :full)))
    (write-sequence octets stream)
    (finish-output stream)))
