;;;; Operations of users on whole messages: write, read, compare, merge, clear, print.

(in-package #:clgrpc.protobuf)

;;; Writing

(defun serialized-size (message)
  "Return the number of octets of the serialized form of MESSAGE. From any thread, while no other
thread changes MESSAGE."
  (funcall (message-type-sizer (message-type-of message)) message))

(define-hot (measure :inline t) ((type message-type) (message t)) index
  "Return the serialized size of MESSAGE, which must be of TYPE. Store the sizes of its parts in
MESSAGE for the writer of TYPE. Signal REQUIRED-FIELD-MISSING."
  (let ((size (the index (funcall (message-type-sizer type) message))))
    (check-required type message)
    size))

(define-hot (write-measured :inline t)
    ((type message-type) (message t) (octets octets) (start index) (end index))
    null
  "Write MESSAGE, which MEASURE must have measured just before, from START to END of OCTETS."
  (unless (= end (the index (funcall (message-type-writer type) message octets start)))
    (fail-room)))

(defun call-keeping-tail (function octets end)
  "Call FUNCTION, which may overwrite nine octets after END of OCTETS, and restore these octets."
  (declare (type function function) (type octets octets) (type index end))
  (let ((tail (make-array 9 :element-type 'octet)))
    (declare (dynamic-extent tail))
    (replace tail octets :start2 end)
    (funcall function)
    (replace octets tail :start1 end)))

(define-hot serialize-whole ((message message)) (values octets index)
  "SERIALIZE without options."
  (declare (inline message-layout))
  (let* ((type (truly-the message-type (layout-type (message-layout message))))
         (size (measure type message))
         (octets (make-raw-vector size octet)))
    (write-measured type message octets 0 size)
    (values octets size)))

(define-compiler-macro serialize (&whole form message &rest options)
  (if options form `(serialize-whole ,message)))

(defun serialize (message &key into (start 0) partial deterministic)
  "Return the serialized form of MESSAGE as fresh octets. With INTO, an octet vector, write the form
to INTO, beginning at START, and return two values: INTO and the position after the last octet.
Fields are in the order of their numbers, followed by extensions and unknown fields. With
DETERMINISTIC maps are sorted by key, so that equal messages give equal octets in this version of
clgrpc. Without it entries have the order of their insertion. MESSAGE must not change meanwhile.
Signal REQUIRED-FIELD-MISSING unless PARTIAL, and MISUSE if there is no room in INTO. From any
thread."
  (let* ((type (truly-the message-type (layout-type (message-layout message))))
         (size (if partial
                   (the index (funcall (message-type-sizer type) message))
                   (measure type message)))
         (octets (if into (the octets into) (make-raw-vector (+ start size) octet))))
    (declare (type index start size))
    (when (and (plusp start) (not into)) (fill octets 0 :end start))
    (when (> (+ start size) (length octets))
      (misuse "A message of ~D octets does not fit at position ~D into ~D octets." size start
              (length octets)))
    (let ((end (+ start size)))
      (if (and (= end (length octets)) (not deterministic))
          (write-measured type message octets start end)
          (call-keeping-tail (lambda ()
                               (let ((*deterministic* deterministic))
                                 (write-measured type message octets start end)))
                             octets end))
      (values octets end))))

;;; Reading

(defmacro check-slice (octets start end)
  `(unless (<= ,start ,end (length ,octets))
     (misuse "Octets ~D to ~D are not in a vector of ~D." ,start ,end (length ,octets))))

(define-hot parse-whole ((type message-type) (octets octets) (start index) (end index)) message
  "PARSE-OCTETS without options."
  (check-slice octets start end)
  (let ((message (truly-the message
                            (read-twice (reading (- end start))
                              (funcall (message-type-reader type) octets start end reading)))))
    (check-required type message)
    message))

(define-hot parse-received
    ((type message-type) (octets octets) (start index) (end index) (depth index)
     (decoded-octets index) (consume boolean)
     &key (partial t nil) (beyond (or null function) nil))
    (values message boolean fixnum)
  "Do what PARSE-OCTETS does, for received octets. The second value is true if OCTETS have become
part of the message, which happens only with CONSUME; the caller must not use them then. The third
value is the memory, in octets, that the messages inside the message take. BEYOND, if not nil, is
called without arguments if these messages take more memory than allowed; it must exit non-locally."
  (when beyond
    (return-from parse-received
      (handler-case (parse-received type octets start end depth decoded-octets consume
                                    :partial partial)
        (memory-limit-exceeded () (funcall (the function beyond))))))
  (check-slice octets start end)
  (let* ((kept nil)
         (inside 0)
         (message (truly-the message
                             (read-twice (reading (- end start)
                                                  :depth depth :decoded-octets decoded-octets
                                                  :spare (and consume octets))
                               (let ((message (funcall (message-type-reader type)
                                                       octets start end reading)))
                                 (when (and consume message) (setf kept (keep-spare reading)))
                                 (setf inside (- (+ decoded-octets (* 8 (- end start)))
                                                 (reading-allowance reading)))
                                 message)))))
    (declare (type fixnum inside))
    (unless partial (check-required type message))
    (values message kept inside)))

(define-hot parse-octets
    ((type message-type) (octets octets) (start index) (end index)
     &key (depth index **max-message-depth**) (decoded-octets index **max-decoded-octets**)
     (partial t nil))
    message
  "Return the message of TYPE whose serialized form is the octets START to END. The message may be
at most DEPTH levels deep. The messages inside it may occupy at most DECODED-OCTETS of memory beyond
eight times its size. Signal PROTOBUF-ERROR if the octets are not such a message or, unless PARTIAL,
if a required field is missing."
  (values (parse-received type octets start end depth decoded-octets nil :partial partial)))

(define-compiler-macro parse-octets (&whole form type octets start end &rest options)
  (if options form `(parse-whole ,type ,octets ,start ,end)))

(defun octets-to-parse (type octets)
  "OCTETS, an argument of PARSE-MESSAGE after TYPE, as a vector of octets."
  (if (octet-sequence-p octets)
      (coerce octets 'octets)
      (misuse "PARSE-MESSAGE takes a message type and then octets, not ~A~:[~; (the two arguments ~
               are in the wrong order)~]."
              (bounded-text octets :limit 60 :escape t) (octet-sequence-p type))))

(defun parse-message (type octets &key (start 0) end into partial
                                    (max-message-depth **max-message-depth**)
                                    (max-decoded-octets **max-decoded-octets**))
  "Return the message of TYPE (a symbol such as HELLOWORLD:HELLO-REPLY, a full name or a message
type) whose serialized form is OCTETS, a vector of octets, from START to END. With INTO, a message
of TYPE, it is merged into INTO as by MERGE-MESSAGE and INTO is returned; invalid octets leave INTO
unchanged. At most MAX-MESSAGE-DEPTH levels may be nested. The messages inside may take at most
MAX-DECODED-OCTETS of memory in addition to eight times END - START. Both limits are rows of
OPTION-TABLE. Signal PROTOBUF-ERROR if OCTETS are not a message of TYPE, and REQUIRED-FIELD-MISSING
unless PARTIAL. From any thread; only one thread at a time may use INTO."
  (when (stringp octets)
    (misuse "PARSE-MESSAGE reads octets, not the text ~S; PARSE-JSON-MESSAGE and ~
             PARSE-TEXT-MESSAGE read texts." (bounded-text octets :limit 60)))
  (let* ((octets (if (typep octets 'octets) octets (octets-to-parse type octets)))
         (type (need-message-type type))
         (end (or end (length octets))))
    (handler-bind ((protobuf-error
                     (lambda (condition)
                       (unless (protobuf-error-type condition)
                         (reinitialize-error-type condition (message-type-name type))))))
      (let ((message (parse-octets type octets start end
                                   :partial (or partial (and into t))
                                   :depth max-message-depth :decoded-octets max-decoded-octets)))
        (when into
          (setf message (merge-message into message))
          (unless partial (check-required type message)))
        message))))

;;; Length-delimited messages: the size as a varint before each

(defun write-delimited (message destination &key (start 0) partial deterministic)
  "Write the serialized form of MESSAGE, preceded by its size as a varint, so that messages may
follow each other, to DESTINATION: a binary output stream, or octets, in which writing begins at
START. Return the number of octets written or, if DESTINATION is octets, the position after them.
PARTIAL, DETERMINISTIC and errors are as for SERIALIZE. From any thread; one thread at a time may
use DESTINATION."
  (let* ((size (serialized-size message))
         (length (varint-size size))
         (stream-p (streamp destination))
         (octets (if stream-p (make-octets (+ length size)) destination))
         (at (if stream-p 0 start)))
    (declare (type octets octets) (type index at))
    (when (> (+ at length size) (length octets))
      (misuse "A message of ~D octets and its size do not fit at position ~D into ~D octets."
              size at (length octets)))
    (put-varint size)
    (setf at (nth-value 1 (serialize message :into octets :start at :partial partial
                                     :deterministic deterministic)))
    (when stream-p (write-sequence octets destination))
    at))

(defun read-delimited (type source &rest arguments
                       &key (start 0) end (max-octets **max-receive-octets**)
                         into partial max-message-depth max-decoded-octets)
  "Return the next message of TYPE that WRITE-DELIMITED wrote to SOURCE: a binary input stream, or
octets, which are read from START to END. Return nil if nothing is left. If SOURCE is octets, the
second value is the position after the message. A message of more than MAX-OCTETS (4 MiB unless
given) is refused by a PROTOBUF-ERROR before it is read.
Other arguments and errors are those of PARSE-MESSAGE. From any thread; one thread at a time may use
SOURCE."
  (declare (ignore into partial max-message-depth max-decoded-octets))
  (let ((rest (loop for (key value) on arguments by #'cddr
                    unless (member key '(:start :end :max-octets)) collect key and collect value)))
    (flet ((parse (octets start end)
             (apply #'parse-message type octets :start start :end end rest))
           (check (size)
             (when (> size max-octets)
               (fail-read nil "it has ~D octets and only ~D are allowed" size max-octets))))
      (if (streamp source)
          (when-let ((size (read-stream-varint source)))
            (check size)
            (parse (read-stream-octets source size) 0 size))
          (let ((octets source) (at start) (end (or end (length source))))
            (declare (type octets octets) (type index at end))
            (unless (<= at end (length octets))
              (misuse "Octets ~D to ~D are not in a vector of ~D." at end (length octets)))
            (if (= at end)
                (values nil end)
                (with-delimited (start stop)
                  (check (- stop start))
                  (values (parse octets start stop) stop))))))))

(defun read-stream-varint (stream)
  "Read a varint from STREAM and return it, or nil at the end of STREAM."
  (let ((octets (make-octets 10)))
    (loop for i from 0 below 10
          for octet = (read-byte stream nil)
          do (cond (octet (setf (aref octets i) octet))
                   ((zerop i) (return nil))
                   (t (fail-truncated i)))
             (when (< octet 128)
               (let ((at 0) (end (1+ i)))
                 (declare (type index at end))
                 (return (take-varint64))))
          finally (fail-varint 0))))

(defun read-stream-octets (stream size)
  "The next SIZE octets of STREAM. Room is allocated as octets arrive, not as SIZE claims."
  (let ((octets (make-octets (min size 65536))) (count 0))
    (loop
      (let ((end (read-sequence octets stream :start count)))
        (when (< end (length octets)) (fail-truncated end))
        (when (= end size) (return octets))
        (let ((longer (make-octets (min size (* 2 end)))))
          (setf octets (replace longer octets)
                count end))))))

;;; Comparing

(defun message= (a b)
  "Return true if the messages A and B are of one type, the same fields are present in both, and the
values of these fields are equal. Repeated fields are compared element by element, maps as sets of
entries, and floats by their bits (so a NaN equals itself, and -0 is not 0). Loaded extensions are
compared like fields, unknown fields by their octets. From any thread, while no other thread changes
A or B."
  (and (eq (message-type-of a) (message-type-of b))
       (let ((a (current a)) (b (current b)))
         (and (eq (message-layout a) (message-layout b))
              (equalp (unknown-fields a) (unknown-fields b))
              (let ((slots (present-slots a)))
                (and (equal slots (present-slots b))
                     (every (lambda (slot)
                              (value= (slot-user-value a slot) (slot-user-value b slot)))
                            slots)))))))

(defun value= (a b)
  (typecase a
    (message (and (message-p b) (message= a b)))
    (string (and (stringp b) (string= a b)))
    (vector (and (vectorp b) (= (length a) (length b)) (every #'value= a b)))
    (proto-map
     (and (proto-map-p b)
          (= (map-count a) (map-count b))
          (do-map ((key value) a t)
            (multiple-value-bind (other present) (map-value b key)
              (unless (and present (value= value other)) (return nil))))))
    (t (eql a b))))

;;; Merging, clearing

(defun merge-message (target source)
  "Merge SOURCE into TARGET, a message of the same type, and return TARGET, as if the serialized
form of SOURCE were appended to that of TARGET. Present singular fields replace those of TARGET,
sub-messages are merged, repeated fields appended, map entries put, unknown fields appended. TARGET
then shares no message, vector or map with SOURCE. Signal a TYPE-ERROR if the types differ. Only one
thread at a time may change TARGET, while no other thread changes SOURCE."
  (unless (eq (message-type-of target) (message-type-of source))
    (error 'type-error :datum source :expected-type (type-of target)))
  (let* ((into (current target))
         (source (if (eq into (current source)) (copy-message source) (current source)))
         (unknown (unknown-fields source)))
    (dolist (slot (present-slots source))
      (merge-slot into slot (slot-user-value source slot)))
    (when unknown (append-unknown into unknown))
    target))

(defun merge-slot (target slot value)
  "Merge VALUE, the accessor's value of SLOT in another message, into TARGET."
  (let ((old (and (slot-present-p target slot) (slot-user-value target slot))))
    (cond ((and old (eq :map (slot-label slot))) (merge-map old value))
          ((and old (eq :repeated (slot-label slot)))
           (set-slot target slot (concatenate `(simple-array ,(element-type (slot-kind slot)) (*))
                                              old (copy-value value))))
          ((and old (message-p value)) (merge-message old value))
          ((eq :singular (slot-label slot))
           (set-slot target slot (copy-value (to-stored slot value))))
          (t (set-slot target slot (copy-value value))))))

(defun append-unknown (message octets)
  "Add OCTETS to the unknown fields of MESSAGE, which has the current layout."
  (let* ((extra (message-extra message))
         (old (if (extras-p extra) (extras-unknown extra) extra))
         (unknown (if old (concatenate 'octets old octets) octets)))
    (setf (message-extra message)
          (if (extras-p extra)
              (make-extras unknown (extras-entries extra) (extras-epoch extra))
              unknown))))

(defun clear-message (message)
  "Make every field and extension of MESSAGE absent, drop its unknown fields, and return it. Only
one thread at a time may change MESSAGE."
  (let ((current (current message)))
    (setf (message-extra current) nil)
    (loop for slot across (layout-slots (message-layout current))
          do (clear-slot current slot))
    message))

;;; Printing: one line, and never a long one. A message is written to a stream with room for a
;;; limited number of characters; its sub-messages are written to the same stream, so all of them
;;; share that room.

(defparameter *print-message-characters* 60
  "The maximum number of characters or octets that PRINT-OBJECT shows of a field of a message.")

(defconstant +message-characters+ 400
  "The maximum number of characters that are shown of a message with its sub-messages.")

(defvar *message-stream* nil
  "The stream to which a message is being written, or nil if none is.")

(defmethod print-object ((message message) stream)
  (if (eq stream *message-stream*)
      (print-unreadable-object (message stream) (print-fields message stream))
      (print-unreadable-object (message stream)
        (multiple-value-bind (text cut)
            (with-bounded-text (room +message-characters+)
              (let ((*print-pretty* nil) (*message-stream* room))
                (print-fields message room)))
          (write-string text stream)
          (when cut (write-string " …" stream))))))

(defun print-fields (message stream)
  "Write the type of MESSAGE and the fields that are present."
  (let ((current (ignore-errors (current message))) (type (message-type-of message)))
    (if (message-type-symbol type)
        (prin1 (message-type-symbol type) stream)
        (write-string (message-type-name type) stream))
    (when current
      (dolist (slot (present-slots current))
        (if (eq :extension (slot-presence slot))
            (format stream " [~A] " (descriptor-full-name (slot-field slot)))
            (format stream " :~(~A~) " (slot-name slot)))
        (print-value (slot-user-value current slot) stream)))))

(defun print-value (value stream)
  (typecase value
    (string (write-printable value stream :limit *print-message-characters* :quoted t))
    (octets (print-octets value stream))
    (vector (if (<= (length value) 4)
                (loop for i from 0 below (length value)
                      do (write-char (if (zerop i) #\( #\Space) stream)
                         (print-value (aref value i) stream)
                      finally (write-char #\) stream))
                (format stream "<~D elements>" (length value))))
    (proto-map (format stream "<~D entr~:@P>" (map-count value)))
    (t (prin1 value stream))))

(defun print-octets (octets stream)
  "Write the beginning of OCTETS as text if it is readable, else the number of octets and the first
few of them in hexadecimal."
  (let ((text (octets-text octets *print-message-characters*)))
    (cond (text
           (write-char #\< stream)
           (write-printable text stream :quoted t)
           (when (> (length octets) *print-message-characters*) (write-char #\… stream))
           (write-char #\> stream))
          (t (format stream "<~D octet~:P~@[ ~(~{~2,'0X~}~)~]~:[~;…~]>" (length octets)
                     (coerce (subseq octets 0 (min 16 (length octets))) 'list)
                     (< 16 (length octets)))))))

(defun octets-text (octets limit)
  "Return the text that the first LIMIT octets of OCTETS encode, or nil if these are not text or the
text has invisible characters."
  (and (plusp (length octets))
       (let* ((end (min limit (length octets)))
              ;; do not end within a character
              (end (if (< end (length octets))
                       (loop while (and (plusp end) (= #x80 (logand #xC0 (aref octets end))))
                             do (decf end)
                             finally (return end))
                       end))
              (text (handler-case (decode-utf8 octets 0 end)
                      (invalid-utf8 () nil))))
         (and text (notany #'unsafe-char-p text) text))))
