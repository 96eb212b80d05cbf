;;;; The text of a simulation: its history, with the frames of HTTP/2 that arrive, then its metrics
;;;; and spans. What is the same several times is written once, with the number of times.

(in-package #:clgrpc.tests.record)

;;; Frames

(defstruct (line (:copier nil))
  "One direction of a connection."
  (peer (dialogue:make-peer) :read-only t)
  (octets (octets-of) :type octets))    ; of a frame of which the rest has not arrived

(defmethod print-object ((line line) stream)
  (print-unreadable-object (line stream :type t)
    (format stream "~D octets" (length (line-octets line)))))

(defun line-at (lines where connection)
  "The line of LINES, a table, by which the host WHERE hears the other end of CONNECTION."
  (let ((key (list where connection)))
    (or (gethash key lines) (setf (gethash key lines) (make-line)))))

(defun frames-end (octets start)
  "The end of the last whole frame in OCTETS from START on."
  (loop with end = start
        for next = (and (<= (+ end 9) (length octets)) (+ end 9 (u24be octets end)))
        while (and next (<= next (length octets)))
        do (setf end next)
        finally (return end)))

(defun arrived-frames (line octets)
  "The frames of LINE of which OCTETS are the end, in the notation of the dialogues."
  (let* ((all (concatenate 'octets (line-octets line) octets))
         (start (if (eql 0 (search dialogue:*preface* all)) (length dialogue:*preface*) 0))
         (end (frames-end all start)))
    (setf (line-octets line) (subseq all end))
    (dialogue:read-frame-forms (line-peer line) (subseq all start end))))

(defun printed (text)
  "TEXT with each character that is not printed as its number."
  (with-output-to-string (stream)
    (loop for char across text
          do (if (char<= #\Space char #\~)
                 (write-char char stream)
                 (format stream "\\~D" (char-code char))))))

(defun field-text (name value)
  "A field of a frame; of a long time only the first digits, since some microseconds more or fewer
change nothing."
  (if (and (string= "grpc-timeout" name) (< 4 (length value)))
      (format nil "~A=~A…~A" name (subseq value 0 3) (subseq value (1- (length value))))
      (format nil "~A=~A" name value)))

(defun item-text (item)
  "ITEM of a frame: fields as NAME=VALUE."
    (typecase item
      (string (format nil "\"~A\"" (printed item)))
      (cons (if (consp (first item))
                (format nil "~{~A~^ ~}" (mapcar (lambda (field) (apply #'field-text field)) item))
                (format nil "~(~A~)=~{~A~^,~}" (first item) (rest item))))
      (symbol (format nil "~(~A~)" item))
      (t (princ-to-string item))))

(defun line-text (entry)
  "The line of ENTRY of a history, with milliseconds instead of microseconds."
  (let ((line (string-left-trim " " (sim::entry-line entry))) (digits nil))
    (with-output-to-string (stream)
      (loop for char across line
            do (setf digits (cond ((char= #\. char) 0)
                                  ((and digits (digit-char-p char)) (1+ digits))))
               (unless (and digits (< 3 digits)) (write-char char stream))))))

(defun write-counted (text count)
  "Write TEXT, lines, and at the end of its first line COUNT unless that is 1."
  (let ((end (position #\Newline text)))
    (format t "~A~:[ (~D times)~;~*~]~A~%" (subseq text 0 end) (= 1 count) count
            (if end (subseq text end) ""))))

(defun write-history (simulation)
  "Write what has happened in SIMULATION, in its order; equal lines in succession once."
  (let ((lines (make-hash-table :test 'equal)) (last nil) (count 0))
    (flet ((note-line (line)
             (cond ((equal line last) (incf count))
                   (t (when last (write-counted last count))
                      (setf last line count 1)))))
      (loop for entry across (sim::history-entries (sim::simulation-history simulation))
            for (nil connection octets) = (sim::entry-arguments entry)
            for text = (line-text entry)
            do (if (eq :octets (sim::entry-event entry))
                   (dolist (frame (arrived-frames (line-at lines (sim::entry-where entry)
                                                           connection)
                                                  octets))
                     (note-line (format nil "~A~D ~{~A~^ ~}" (subseq text 0 (search "octets" text))
                                        connection (mapcar #'item-text frame))))
                   (note-line text)))
      (note-line nil))))

(defun write-events (simulation)
  "Write what has happened in SIMULATION, but for what went over the wire."
  (loop for entry across (sim::history-entries (sim::simulation-history simulation))
        unless (eq :octets (sim::entry-event entry))
          do (write-line (line-text entry))))

;;; Messages

(defun message-types (path)
  "The types of the requests and of the answers of the method with PATH."
  (destructuring-bind (service name) (rest (uiop:split-string path :separator "/"))
    (let ((method (find name (protobuf:service-descriptor-methods
                              (protobuf:find-descriptor service))
                        :key #'protobuf:descriptor-name :test #'string=)))
      (mapcar #'protobuf:find-message-type (list (protobuf:method-descriptor-input method)
                                                 (protobuf:method-descriptor-output method))))))

(defun write-messages (type octets)
  "Write the messages of TYPE in OCTETS, as gRPC frames them."
  (loop with start = 0
        while (< start (length octets))
        do (let ((end (+ start 5 (u32be octets (1+ start)))))
             (format t " {~{~A~^ ~}}"
                     (remove "" (uiop:split-string (protobuf:message-text
                                                    (protobuf:parse-message
                                                     type (subseq octets (+ start 5) end)))
                                                   :separator '(#\Space #\Newline))
                             :test #'string=))
             (setf start end))))

(defun write-dialogue (simulation)
  "Write the messages that hosts send each other in SIMULATION, what ends their calls if that is not
:ok, and the log."
  (let ((lines (make-hash-table :test 'equal))
        (paths (make-hash-table :test 'equal)) ; of calls, by connection and stream
        (dialogue:*most-shown* 100000))
    (loop for entry across (sim::history-entries (sim::simulation-history simulation))
          for where = (sim::entry-where entry)
          for (nil connection octets) = (sim::entry-arguments entry)
          do (if (eq :octets (sim::entry-event entry))
                 (dolist (frame (arrived-frames (line-at lines where connection) octets))
                   (destructuring-bind (kind &optional id content &rest more) frame
                     (declare (ignore more))
                     (let ((call (list connection id)))
                       (case kind
                         (:headers
                          (let ((path (second (assoc ":path" content :test #'string=)))
                                (status (second (assoc "grpc-status" content :test #'string=))))
                            (when path (setf (gethash call paths) (cons where path)))
                            (when (and status (string/= "0" status))
                              (format t "~A: ~A ~A~%" where (cdr (gethash call paths))
                                      (item-text content)))))
                         (:data
                          (destructuring-bind (server . path) (gethash call paths)
                            (format t "~A: ~A" where path)
                            (write-messages (if (string= server where)
                                                (first (message-types path))
                                                (second (message-types path)))
                                            (map 'octets #'char-code content))
                            (terpri)))))))
                 (unless (member (sim::entry-event entry) '(:connects :accepts :accepted :end))
                   (write-line (line-text entry)))))))

;;; Observations

(defun attributes-text (attributes)
  (format nil "~:{ ~A=~A~}" (loop for (name . value) in attributes collect (list name value))))

(defun point-text (point)
  "The value of POINT; of a histogram the count, the sum and the buckets that are not empty."
  (if (metrics:point-bounds point)
      (format nil "~D, sum ~,4F~:{; ~D up to ~A~}" (metrics:point-count point)
              (metrics:point-sum point)
              (loop for count in (metrics:point-buckets point)
                    for i from 0
                    for bounds = (metrics:point-bounds point)
                    unless (zerop count)
                      collect (list count (when (< i (length bounds)) (elt bounds i)))))
      (metrics:point-value point)))

(defun write-metrics (metrics)
  "Write the points of METRICS that are of calls and connections, not of the process."
  (dolist (family (metrics:collect metrics))
    (when (eql 0 (search "grpc." (metrics:family-name family)))
      (dolist (point (metrics:family-points family))
        (format t "~A~A: ~A~%" (metrics:family-name family)
                (attributes-text (metrics:point-attributes point)) (point-text point))))))

(defun span-text (span)
  "The text of SPAN, with the seconds that it takes and those after which its events are."
  (flet ((seconds (ns) (ns-seconds (- ns (trace:span-start-ns span)))))
    (format nil "~A ~(~A ~A~) ~,4F~A~:{~%  ~,4F ~A~A~}" (trace:span-name span)
            (trace:span-kind span) (trace:span-status span) (seconds (trace:span-end-ns span))
            (attributes-text (trace:span-attributes span))
            (loop for event in (trace:span-events span)
                  collect (list (seconds (trace:event-ns event)) (trace:event-name event)
                                (attributes-text (trace:event-attributes event)))))))

(defun write-spans (tracing)
  "Write the spans of TRACING by their beginning; equal ones once, where the first begins."
  (let ((texts (mapcar #'span-text
                       (stable-sort (remove :consumer (trace:drain tracing) :key #'trace:span-kind)
                                    #'< :key #'trace:span-start-ns))))
    (dolist (text (remove-duplicates texts :test #'string= :from-end t))
      (write-counted text (count text texts :test #'string=)))))

;;; Scenarios

(defun scenario-text (function write observed-p)
  "What WRITE writes of a simulation in which FUNCTION is called with observers for servers and for
channels, and, if OBSERVED-P, what these have observed."
  (let ((tracing (grpc:make-tracing)) (*print-pretty* nil)
        (client (grpc:make-metrics :enable t)) (server (grpc:make-metrics :enable t)))
    (sim:with-simulation (simulation :latency '(1/1000 1/1000))
      (flet ((observers (metrics) (list* metrics tracing (and observed-p
                                                              (list (grpc:make-access-log))))))
        (funcall function (observers server) (observers client)))
      (sim:wait-for 1/10)
      (with-output-to-string (*standard-output*)
        (funcall write simulation)
        (when observed-p
          (write-metrics client)
          (write-metrics server)
          (write-spans tracing))))))

(defun call-recorded (name function write observed-p tracers)
  "Compare the text of a scenario, while TRACERS are on, with the record NAME; see SCENARIO-TEXT.
The scenario that counts is the second one, which finds the caches of the process as the first has
left them."
  (scenario-text function write observed-p)
  (support:check-record name (with-changed (((grpc:tracers) tracers))
                               (scenario-text function write observed-p))))

(defmacro define-record (name (server client &key (write ''write-history) (observed t) (tracers ""))
                         text &body body)
  "Define the test NAME, which TEXT explains: what BODY does in a simulation, whose servers have the
observers SERVER and whose channels CLIENT, goes as recorded by WRITE, one of the functions above,
with the events of TRACERS, and, if OBSERVED, by the observers."
  `(test ,name ,text
     (call-recorded ',name
                    (lambda (,server ,client)
                      (declare (ignorable ,server ,client))
                      ,@body)
                    ,write ,observed ,tracers)))
