;;;; A profile's stacks for other tools, in two formats. Folded: a line for each stack with its
;;;; callers first (flamegraph.pl, speedscope, inferno). pprof: profile.proto, which `go tool pprof`
;;;; reads; a sample in it is a stack of locations, the innermost first, with the number of samples
;;;; and their nanoseconds. Both are made from the tree of the flame graph.

(in-package #:clgrpc.profile)

(defun map-stacks (function root)
  "Call FUNCTION with each stack of the tree ROOT, JSON, a list of names from the inside, and with
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
      (fail "the profile has no stacks of threads that sleep; they need perf and tracefs")))

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

(defun add-varint (buffer number)
  (loop while (<= 128 number)
        do (append-octet buffer (logior 128 (ldb (byte 7 0) number)))
           (setf number (ash number -7)))
  (append-octet buffer number))

(defun add-number (buffer field number)
  (add-varint buffer (ash field 3))
  (add-varint buffer number))

(defun add-octets (buffer field octets)
  (add-varint buffer (logior (ash field 3) 2))
  (add-varint buffer (length octets))
  (append-octets buffer octets))

(defun message-octets (function)
  "The octets of a message whose fields FUNCTION adds to a buffer."
  (let ((buffer (make-buffer)))
    (funcall function buffer)
    (subseq (buffer-octets buffer) (buffer-start buffer) (buffer-end buffer))))

(defun packed (numbers)
  (message-octets (lambda (buffer) (dolist (number numbers) (add-varint buffer number)))))

(defun location-octets (number)
  "The Location with NUMBER, whose only line is in the function with the same number."
  (let ((line (message-octets (lambda (buffer) (add-number buffer 1 number)))))
    (message-octets (lambda (buffer)
                      (add-number buffer 1 number)
                      (add-octets buffer 4 line)))))

(defun function-octets (number)
  "The Function with NUMBER, whose name is the text with the same number."
  (message-octets (lambda (buffer)
                    (add-number buffer 1 number)
                    (add-number buffer 2 number))))

(defun pprof-octets (profile stacks)
  "The STACKS, :cpu or :off-cpu, of PROFILE as a message perftools.profiles.Profile, octets. The
numbers of a location, of its function and of the function's name are the same. For sleeps only the
time is known, which Go calls delay."
  (let ((strings (make-hash-table :test 'equal))
        (texts (make-array 16 :adjustable t :fill-pointer 0))
        (locations (make-hash-table))
        (samples '())
        (cpu (eq :cpu stacks))
        (period-ns (if (eq :cpu stacks) (member-of profile "cpu" "periodNs") 1)))
    (labels ((text (string)
               (or (gethash string strings)
                   (setf (gethash string strings) (vector-push-extend string texts))))
             (location (name)
               (let ((number (text name)))
                 (setf (gethash number locations) t)
                 number))
             (value-type (type unit)
               (message-octets (lambda (buffer)
                                 (add-number buffer 1 (text type))
                                 (add-number buffer 2 (text unit)))))
             (sample (stack ns)
               (push (message-octets
                      (lambda (buffer)
                        (add-octets buffer 1 (packed (mapcar #'location stack)))
                        (add-octets buffer 2 (packed (append
                                                      (when cpu (list (max 1 (round ns period-ns))))
                                                      (list (round ns)))))))
                     samples)))
      (text "")                         ; the first string must be empty
      (message-octets
       (lambda (buffer)
         (when cpu (add-octets buffer 1 (value-type "samples" "count")))
         (add-octets buffer 1 (value-type (if cpu "cpu" "delay") "nanoseconds"))
         (map-stacks #'sample (profile-stacks profile stacks))
         (dolist (sample (nreverse samples)) (add-octets buffer 2 sample))
         (loop for name being the hash-keys of locations
               do (add-octets buffer 4 (location-octets name))
                  (add-octets buffer 5 (function-octets name)))
         (let ((period-type (value-type (if cpu "cpu" "delay") "nanoseconds")))
           (loop for text across texts do (add-octets buffer 6 (string-octets text)))
           (add-number buffer 10 (round (* +ns-per-second+
                                           (member-of profile (if cpu "cpu" "events")
                                                      "seconds"))))
           (add-octets buffer 11 period-type)
           (add-number buffer 12 (round period-ns))))))))

(defun write-pprof (profile &key (stacks :cpu))
  "Write the STACKS, :cpu or :off-cpu, of PROFILE in pprof's format to the standard output, octets."
  (finish-output)
  (let ((octets (pprof-octets profile stacks))
        (stream (sb-sys:make-fd-stream 1 :output t :element-type '(unsigned-byte 8)
                                         :buffering :full)))
    (write-sequence octets stream)
    (finish-output stream)))
