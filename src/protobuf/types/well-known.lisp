;;;; Conversions between the well-known types and their Lisp counterparts: points in time, spans of
;;;; time, the messages inside an Any, the data inside a Struct.
;;;;
;;;; Times are exact: nanoseconds are integers, seconds are rationals; a float is rounded to the
;;;; nearest nanosecond. Data have the form of PARSE-JSON of clgrpc.base: an alist with string keys
;;;; for an object, a vector for an array, a string, a number, :TRUE, :FALSE, :NULL.

(in-package #:clgrpc.protobuf)

(defconstant +unix-epoch+ 2208988800
  "1970-01-01T00:00:00Z as a universal time.")

(defun nanoseconds-of (seconds)
  (values (round (* (rational seconds) +ns-per-second+))))

;;; Timestamp

(defun unix-time-timestamp (seconds)
  "Return the google.protobuf.Timestamp of SECONDS, a real, after 1970-01-01T00:00:00Z. Signal
MISUSE if the year is not from 1 to 9999. From any thread."
  (multiple-value-bind (whole nanoseconds) (floor (nanoseconds-of seconds) +ns-per-second+)
    (unless (<= +least-timestamp+ whole +greatest-timestamp+)
      (misuse "~A seconds after 1970 are outside of the years 1 to 9999." seconds))
    (google.protobuf:make-timestamp :seconds whole :nanos nanoseconds)))

(defun timestamp-unix-time (timestamp)
  "Return the seconds, a rational, from 1970-01-01T00:00:00Z to TIMESTAMP, a
google.protobuf.Timestamp. From any thread."
  (+ (google.protobuf:timestamp-seconds timestamp)
     (/ (google.protobuf:timestamp-nanos timestamp) +ns-per-second+)))

(defun universal-time-timestamp (universal-time &key (nanoseconds 0))
  "Return the google.protobuf.Timestamp that is NANOSECONDS after UNIVERSAL-TIME, an integer as
GET-UNIVERSAL-TIME returns. Signal MISUSE if the year is not from 1 to 9999. From any thread."
  (unix-time-timestamp (+ (- universal-time +unix-epoch+) (/ nanoseconds +ns-per-second+))))

(defun timestamp-universal-time (timestamp)
  "Return two values: the second of TIMESTAMP, a google.protobuf.Timestamp, as a universal time, and
the nanoseconds after it. The universal time is negative before 1900. From any thread."
  (multiple-value-bind (whole rest) (floor (timestamp-unix-time timestamp))
    (values (+ whole +unix-epoch+) (* rest +ns-per-second+))))

;;; Duration

(defun seconds-duration (seconds)
  "Return the google.protobuf.Duration of SECONDS, a real. Signal MISUSE if SECONDS are more than
about 10,000 years, positive or negative. From any thread."
  (multiple-value-bind (whole nanoseconds) (truncate (nanoseconds-of seconds) +ns-per-second+)
    (unless (<= (- +greatest-duration+) whole +greatest-duration+)
      (misuse "~A seconds are more than a duration can have." seconds))
    (google.protobuf:make-duration :seconds whole :nanos nanoseconds)))

(defun duration-in-seconds (duration)
  "Return the length of DURATION, a google.protobuf.Duration, in seconds, a rational. From any
thread."
  (+ (google.protobuf:duration-seconds duration)
     (/ (google.protobuf:duration-nanos duration) +ns-per-second+)))

;;; Any

(defun any-pack (message &key (prefix "type.googleapis.com"))
  "Return a google.protobuf.Any that holds MESSAGE. The Any's type URL is PREFIX, a string, then a
slash and the full name of MESSAGE's type. Signal REQUIRED-FIELD-MISSING if MESSAGE lacks a required
field. From any thread, while no other thread changes MESSAGE."
  (google.protobuf:make-any
   :type-url (format nil "~A/~A" prefix (message-type-name (message-type-of message)))
   :value (serialize message)))

(defun any-type-name (any)
  "Return the full name of the type of the message in ANY, a google.protobuf.Any: the part of its
type URL after the last slash. From any thread."
  (let ((url (google.protobuf:any-type-url any)))
    (subseq url (let ((slash (position #\/ url :from-end t))) (if slash (1+ slash) 0)))))

(defun any-unpack (any &optional type)
  "Return the message in ANY, a google.protobuf.Any. With TYPE, a symbol, full name or message type,
return nil if the message is of another type. Signal PROTOBUF-ERROR if the Any's type is not loaded
or the Any's octets are not a message of that type. From any thread."
  (let* ((name (any-type-name any))
         (found (find-message-type name)))
    (cond ((and type (not (eq found (need-message-type type)))) nil)
          ((and found (message-type-defined-p found))
           (parse-message found (google.protobuf:any-value any)))
          (t (error 'protobuf-error :type "google.protobuf.Any"
                                    :text (format nil "the type ~A of its message is not loaded"
                                                  (printable-text name :limit 200 :quoted t)))))))

;;; Struct

(defun data-value (data)
  "Return the google.protobuf.Value of DATA: a string, a real, an alist with strings as keys for an
object, a vector for an array, :TRUE or T, :FALSE, :NULL. NIL is the empty object. Signal MISUSE for
anything else, and for a number that cannot be written in JSON. From any thread."
  (typecase data
    (string (google.protobuf:make-value :string-value data))
    (real (google.protobuf:make-value :number-value (finite-double data)))
    (vector (google.protobuf:make-value :list-value (vector-list-value data)))
    (list (google.protobuf:make-value :struct-value (alist-struct data)))
    ((member t :true) (google.protobuf:make-value :bool-value t))
    ((eql :false) (google.protobuf:make-value :bool-value nil))
    ((eql :null) (google.protobuf:make-value :null-value :null-value))
    (t (misuse "A google.protobuf.Value cannot be ~S." data))))

(defun finite-double (number)
  (let ((double (to-double number)))
    (unless (finite-p double)
      (misuse "A google.protobuf.Value cannot be ~A." number))
    double))

(defun value-data (value)
  "Return the data of VALUE, a google.protobuf.Value, in the form of DATA-VALUE; numbers are
double-floats, arrays simple vectors. A value in which no field is present is :NULL. From any
thread."
  (multiple-value-bind (stored case) (google.protobuf:value-kind value)
    (ecase case
      ((:null-value nil) :null)
      ((:number-value :string-value) stored)
      (:bool-value (if stored :true :false))
      (:struct-value (struct-alist stored))
      (:list-value (list-value-vector stored)))))

(defun alist-struct (alist)
  "Return the google.protobuf.Struct with the members of ALIST, whose keys are strings and whose
values are as for DATA-VALUE. From any thread."
  (google.protobuf:make-struct
   :fields (loop for (name . data) in alist collect (cons name (data-value data)))))

(defun struct-alist (struct)
  "Return the members of STRUCT, a google.protobuf.Struct, as an alist from strings to data in the
form of VALUE-DATA. From any thread."
  (loop for (name . value) in (map-alist (google.protobuf:struct-fields struct))
        collect (cons name (value-data value))))

(defun vector-list-value (vector)
  "Return the google.protobuf.ListValue with the elements of VECTOR, which are as for DATA-VALUE.
From any thread."
  (google.protobuf:make-list-value :values (map 'vector #'data-value vector)))

(defun list-value-vector (list-value)
  "Return the elements of LIST-VALUE, a google.protobuf.ListValue, as a simple vector of data in the
form of VALUE-DATA. From any thread."
  (map 'simple-vector #'value-data (google.protobuf:list-value-values list-value)))
