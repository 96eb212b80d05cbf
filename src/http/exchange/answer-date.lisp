;;;; The date of an answer (RFC 9110 section 6.6.1), as text and as a field of HPACK, both made once
;;;; a second for all connections.

(in-package #:clgrpc.exchange)

(defstruct (answer-date (:constructor make-answer-date (seconds text field)) (:copier nil))
  "A second, with the text of its date for answers."
  (seconds 0 :type fixnum :read-only t) ; the time in seconds since 1970
  (text "" :type string :read-only t)   ; the time as HTTP writes it
  (field nil :type hpack:field :read-only t)) ; the header field with TEXT as its value

(declaim (sb-ext:freeze-type answer-date))

(defmethod print-object ((date answer-date) stream)
  (print-unreadable-object (date stream :type t) (write-string (answer-date-text date) stream)))

(defun date-text (unix-seconds)
  "Return the date at UNIX-SECONDS in the form of HTTP (RFC 9110 section 5.6.7)."
  (multiple-value-bind (second minute hour date month year day)
      (decode-universal-time (+ unix-seconds #.(encode-universal-time 0 0 0 1 1 1970 0)) 0)
    (format nil "~A, ~2,'0D ~A ~D ~2,'0D:~2,'0D:~2,'0D GMT"
            (nth day '("Mon" "Tue" "Wed" "Thu" "Fri" "Sat" "Sun"))
            date
            (nth (1- month) '("Jan" "Feb" "Mar" "Apr" "May" "Jun" "Jul" "Aug" "Sep" "Oct" "Nov"
                              "Dec"))
            year hour minute second)))

(defun date-of (unix-seconds)
  (let ((text (date-text unix-seconds)))
    (make-answer-date unix-seconds text (hpack:string-field "date" text))))

(declaim (type answer-date **date**))
(sb-ext:define-load-time-global **date** (date-of 0))

(defun current-date ()
  "Return the present ANSWER-DATE, or nil in a world without dates."
  (let ((now (loop:unix-seconds)) (last **date**))
    (cond ((null now) nil)
          ((eql now (answer-date-seconds last)) last)
          (t (setf **date** (date-of now))))))

(defun current-date-text ()
  "The present date in the form of HTTP, or nil if it is not known."
  (let ((date (current-date)))
    (and date (answer-date-text date))))
