;;;; Messages (RFC 1035 section 4): a header of 12 octets, questions, and three sections of records.
;;;;
;;;;   octets 0-1  id               4-5  how many questions    8-9    how many authorities
;;;;          2-3  flags and code   6-7  how many answers      10-11  how many additional records
;;;;
;;;; A question is a name, a type and a class. A record has the same three parts, followed by a time
;;;; to live (4 octets), the length of the data (2 octets) and the data. A query has one question
;;;; and a pseudo-record OPT, which gives the longest answer over UDP that we accept (RFC 6891); the
;;;; OPT of an answer has the upper bits of the answer's code. Only the records of class IN in an
;;;; answer's section of answers are kept.

(in-package #:clgrpc.dns)

(defconstant +a+ 1 "The type of a record with an IPv4 address.")
(defconstant +cname+ 5 "The type of an alias record, whose data are the canonical name.")
(defconstant +txt+ 16 "The type of a record with texts.")
(defconstant +aaaa+ 28 "The type of a record with an IPv6 address (RFC 3596).")
(defconstant +opt+ 41 "The type of the record that extends a message (RFC 6891).")
(defconstant +in+ 1 "The class IN, of the Internet.")

(defconstant +header-octets+ 12)
(defconstant +payload-octets+ 1232
  "The maximum length of an answer over UDP, in octets. An answer of this length fits into one
packet of any network.")

(defstruct (question (:copier nil))
  "The question of a message."
  (name (make-octets 1) :type octets :read-only t) ; see name.lisp
  (type 0 :type (unsigned-byte 16) :read-only t)   ; the type that is asked for, such as +A+
  (class +in+ :type (unsigned-byte 16) :read-only t)) ; +IN+ in our queries

(defstruct (record (:copier nil))
  "A record of the class IN."
  (name (make-octets 1) :type octets :read-only t) ; see name.lisp
  (type 0 :type (unsigned-byte 16) :read-only t)   ; the type of the record, such as +A+
  (seconds 0 :type (unsigned-byte 32) :read-only t) ; how long to keep the record
  ;; +A+ and +AAAA+: the address, 4 or 16 octets; +CNAME+: a name; +TXT+: a list of octets; else nil
  (data nil :read-only t))

(defstruct (message (:copier nil))
  "A message, as returned by PARSE-MESSAGE."
  (id 0 :type (unsigned-byte 16) :read-only t)     ; the query's
  (response-p nil :type boolean :read-only t)      ; true if the message is an answer
  ;; true if the message was cut off: no records were read
  (truncated-p nil :type boolean :read-only t)
  (code 0 :type (unsigned-byte 12) :read-only t)   ; 0 if all is well (RCODE)
  (question nil :type (or null question) :read-only t) ; nil if there is not exactly one
  (records '() :type list :read-only t))           ; the answers, in their order

(declaim (sb-ext:freeze-type question record message))

(document-functions
  message-id "The number that matches the answer MESSAGE to its query."
  message-response-p "True if MESSAGE is an answer."
  message-truncated-p "True if the answer is too long for UDP. Then MESSAGE has no records."
  message-code "The result of the query (RCODE): 0 for success, 3 if there is no such name."
  message-question "The question of MESSAGE, or nil if it has no question or several."
  message-records "The records of MESSAGE's section of answers, a list.")

(define-printer (record record)
  "~A, type ~D" (name-text (record-name record)) (record-type record))

(define-printer (question question)
  "~A, type ~D" (name-text (question-name question)) (question-type question))

(define-printer (message message)
  "~D, code ~D, ~D record~:P" (message-id message) (message-code message)
  (length (message-records message)))

;;; Writing

(defun encode-query (id name type &key (extended t))
  "The octets of a query with ID for the records of TYPE of NAME, octets. If EXTENDED is true, the
query allows answers of more than 512 octets; very old servers do not understand such a query."
  (let ((query (make-octets (+ +header-octets+ (length name) 4 (if extended 11 0))))
        (end (+ +header-octets+ (length name))))
    (setf (u16be query 0) id
          (aref query 2) 1              ; recursion is desired
          (u16be query 4) 1
          (u16be query 10) (if extended 1 0)
          (u16be query end) type
          (u16be query (+ end 2)) +in+)
    (replace query name :start1 +header-octets+)
    (when extended                      ; OPT: the root's name, type, longest answer, no data
      (setf (u16be query (+ end 5)) +opt+
            (u16be query (+ end 7)) +payload-octets+))
    query))

;;; Reading

(defun read-u16 (octets at end)
  (if (<= (+ at 2) end)
      (u16be octets at)
      (bad-message (min at end) "it ends too soon")))

(defun read-question (octets at end)
  "Return two values: the question at AT, and the position after it."
  (multiple-value-bind (name at) (read-name octets at end)
    (values (make-question :name name :type (read-u16 octets at end)
                           :class (read-u16 octets (+ at 2) end))
            (+ at 4))))

(defun read-txt-data (octets start end)
  "The texts of a record's data from START to END, each preceded by its length."
  (loop with at = start
        while (< at end)
        collect (let ((next (+ at 1 (aref octets at))))
                  (when (< end next) (bad-message at "a text is longer than its record"))
                  (prog1 (subseq octets (1+ at) next)
                    (setf at next)))))

(defun read-data (octets type start data-end)
  (flet ((address (length)
           (unless (= length (- data-end start))
             (bad-message start "an address has ~D octets, not ~D" length (- data-end start)))
           (subseq octets start data-end)))
    (case type
      (#.+a+ (address 4))
      (#.+aaaa+ (address 16))
      (#.+txt+ (read-txt-data octets start data-end))
      (#.+cname+ (multiple-value-bind (name next) (read-name octets start data-end)
                   (unless (= next data-end)
                     (bad-message start "a name is not as long as its record"))
                   name)))))

(defun read-record (octets at end function)
  "Call FUNCTION with the name, type, class and time to live of the record at AT, and the start and
end of its data. Return the value of FUNCTION, and the end of the record."
  (declare (type function function))
  (multiple-value-bind (name at) (read-name octets at end)
    (let* ((start (+ at 10))
           (data-end (+ start (read-u16 octets (+ at 8) end))))
      (when (< end data-end) (bad-message at "a record is longer than the message"))
      (values (funcall function name (u16be octets at) (u16be octets (+ at 2))
                       (u32be octets (+ at 4)) start data-end)
              data-end))))

(defun read-answers (octets at end count)
  "Return two values: a list of the COUNT records at AT, without records of classes other than IN,
and the position after all records."
  (values (loop repeat count
                for record = (multiple-value-bind (record next)
                                 (read-record octets at end
                                              (lambda (name type class seconds start data-end)
                                                (when (= class +in+)
                                                  (make-record
                                                   :name name :type type :seconds seconds
                                                   :data (read-data octets type start
                                                                    data-end)))))
                               (setf at next)
                               record)
                when record collect record)
          at))

(defun read-upper-code (octets at end count)
  "Return the upper bits of the code, which are in the OPT record among the COUNT records at AT.
Return 0 if they have no OPT record."
  (let ((upper 0))
    (loop repeat count
          do (setf at (nth-value 1 (read-record octets at end
                                                (lambda (name type class seconds start data-end)
                                                  (declare (ignore name class start data-end))
                                                  (when (= type +opt+)
                                                    (setf upper (ash seconds -24))))))))
    upper))

(defun read-sections (octets at end)
  "Return two values: the records of the answers at AT, and the upper bits of the code. A record has
11 octets or more, so a count that is too large for the message is rejected before any record is
read."
  (let ((answers (u16be octets 6))
        (others (+ (u16be octets 8) (u16be octets 10))))
    (when (< (- end at) (* 11 (+ answers others)))
      (bad-message 6 "it is too short for ~D records" (+ answers others)))
    (multiple-value-bind (records at) (read-answers octets at end answers)
      (values records (read-upper-code octets at end others)))))

(defun parse-message (octets start end)
  "The message in OCTETS from START to END. Signal MALFORMED-MESSAGE if the octets are not a
message. From any thread."
  (declare (type octets octets) (type index start end))
  ;; pointers count from the beginning of the message
  (let* ((octets (subseq octets start end))
         (end (length octets)))
    (when (< end +header-octets+) (bad-message 0 "it has no header"))
    (let* ((response (logbitp 7 (aref octets 2)))
           (truncated (logbitp 1 (aref octets 2)))
           (code (logand #xF (aref octets 3))))
      (unless (zerop (ldb (byte 4 3) (aref octets 2))) (bad-message 2 "it is not a standard query"))
      (if (= 1 (u16be octets 4))
          (multiple-value-bind (question at) (read-question octets +header-octets+ end)
            (multiple-value-bind (records upper)
                (if (and response (not truncated)) (read-sections octets at end) (values '() 0))
              (make-message :id (u16be octets 0) :response-p response :truncated-p truncated
                            :code (logior (ash upper 4) code) :question question
                            :records records)))
          (make-message :id (u16be octets 0) :response-p response :code code)))))
