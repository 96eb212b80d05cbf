;;;; Raw messages: messages that are passed on as the octets that were received, for instance by a
;;;; gateway. A RAW-TYPE is the message type of raw messages; it may refer to the type to which they
;;;; can be decoded.

(in-package #:clgrpc.protobuf)

(defstruct (memory-bound (:copier nil))
  "The memory that messages of a type, and messages inside them, may take."
  (octets 0 :type index)                ; the most octets of memory that a raw message takes
  (name-octets 0 :type index)           ; octets of the longest name of a field in JSON
  (value-octets 0 :type index))         ; octets of the longest name of a value of an enum

(defstruct (raw-type (:include message-type) (:copier nil) (:predicate raw-type-p)
                     (:constructor %make-raw-type (name decoded finder)))
  "A type of messages that are not decoded."
  (decoded nil :type (or null message-type) :read-only t) ; the type of the octets, if known
  (finder nil :type (or null function) :read-only t) ; finds types by name, for JSON
  (memory-bound nil :type (or null memory-bound))) ; the bound for DECODED, found when needed

(document-functions
  raw-type-p "True if OBJECT is a type of messages that are not decoded."
  raw-type-decoded "The message type of the octets in messages of TYPE, a raw type, or nil if it is
not known."
  raw-type-finder "The :FINDER for JSON of messages of TYPE, a raw type, or nil if it has none.")

;;; The memory of a raw message if it were decoded, with its JSON

(defconstant +any-octets+ 4096
  "The maximum memory in octets that a message inside an Any is assumed to need. The message may be
of any type.")

(defun find-memory-bound (type)
  "The MEMORY-BOUND of TYPE, a message type."
  (let ((bound (make-memory-bound)) (seen (make-hash-table :test 'eq)) (open (list type)))
    (flet ((see-slot (slot)
             (dolist (slot (list slot (slot-entry-key slot) (slot-entry-value slot)))
               (when (and slot (slot-field slot))
                 (let ((name (field-descriptor-json-name (slot-field slot))))
                   (setf (memory-bound-name-octets bound)
                         (max (utf8-length name) (memory-bound-name-octets bound))))
                 (case (slot-kind slot)
                   (:message (push (slot-type-object slot) open))
                   (:enum
                    (dolist (value (enum-descriptor-values
                                    (enum-type-descriptor (slot-type-object slot))))
                      (setf (memory-bound-value-octets bound)
                            (max (utf8-length (descriptor-name value))
                                 (memory-bound-value-octets bound))))))))))
      (loop for type = (pop open)
            while type
            do (unless (gethash type seen)
                 (setf (gethash type seen) t)
                 (let ((slots (layout-slots (layout-of-type type)))
                       (extensions (message-type-extensions type)))
                   (map nil #'see-slot slots)
                   (when extensions
                     (loop for slot being the hash-values of extensions do (see-slot slot)))
                   (setf (memory-bound-octets bound)
                         (max (* 8 (+ 8 (length slots))) (memory-bound-octets bound)
                              (if (string= "google.protobuf.Any" (message-type-name type))
                                  +any-octets+
                                  0)))))))
    bound))

(defconstant +value-octets+ 32
  "The estimated octets of memory for each received octet of values other than messages, with the
fields and tables that contain them.")

(defun decoded-room (type octets max-decoded-octets)
  "Return the approximate maximum number of octets of memory that a decoded message of TYPE, a raw
type whose message type is known, occupies together with its JSON. OCTETS is the message's length as
received, in Protocol Buffers or in JSON; MAX-DECODED-OCTETS is the limit for the messages inside
it. From any thread."
  (let ((bound (or (raw-type-memory-bound type)
                   (setf (raw-type-memory-bound type)
                         (find-memory-bound (raw-type-decoded type))))))
    (+ (min (+ max-decoded-octets (* 8 octets))
            (* (memory-bound-octets bound) (ceiling octets 2))) ; each has two octets at least
       (* octets (+ +value-octets+
                    ;; of a string, a number in a list, or a field, with its surroundings
                    (max 6 (+ 3 (memory-bound-value-octets bound))
                         (ceiling (+ 8 (memory-bound-name-octets bound)) 2)))))))

(declaim (inline raw-message-octets))
(defun raw-message-octets (message)
  "The octets of MESSAGE, a raw message. Do not change these octets. From any thread."
  (the octets (svref (dynamic-contents (the dynamic-message message)) 0)))


(defun make-raw-type (name &optional decoded finder)
  "Return a new type, called NAME, of messages that are not decoded. If DECODED, a message type, is
given, the octets are messages of that type; FINDER finds types by name, as :FINDER does for JSON."
  (lay-out-raw (%make-raw-type (copy-seq name) decoded finder)))

(defun lay-out-raw (type)
  "Set the layout of TYPE, a raw type, and return TYPE."
  (let ((layout (make-layout :type type)))
    (setf (layout-maker layout) (lambda () (make-raw-message type (make-octets 0)))
          (layout-reader layout)
          (lambda (octets start end reading)
            (make-dynamic-message layout (vector (bytes-at octets start end reading))))
          (layout-sizer layout) (lambda (message) (length (raw-message-octets message)))
          (layout-writer layout)
          (lambda (message octets start)
            (let ((own (raw-message-octets message)))
              (copy-octets own 0 (length own) octets start)
              (+ start (length own))))
          (layout-copier layout)
          (lambda (message &rest options)
            (declare (ignore options))
            (make-raw-message type (raw-message-octets message))))
    (adopt-layout type layout)
    type))

(sb-ext:define-load-time-global **raw-type** (make-raw-type "octets")
  "The type of raw messages of an unknown message type.")

(defun make-raw-message (type octets)
  "Return the message of TYPE, a raw type, with the octets OCTETS, which must not change."
  (make-dynamic-message (message-type-layout type) (vector (coerce octets 'octets))))

(defun raw-message (octets)
  "Return the raw message with the octets OCTETS, for methods whose types are not known here. OCTETS
must not change. From any thread."
  (make-raw-message **raw-type** octets))

(defun raw-message-p (object)
  "True if OBJECT is a message that was not decoded. From any thread."
  (and (dynamic-message-p object)
       (raw-type-p (layout-type (dynamic-layout object)))))

;;; Coded messages: any Lisp objects, which a user's functions convert to octets and back. A message
;;; to be sent is converted to a raw message first; DECODE-CODED decodes received octets.

(defstruct (coded-type (:include raw-type) (:copier nil) (:predicate coded-type-p)
                       (:constructor %make-coded-type (name serializer deserializer)))
  "A type of messages that functions of a user turn into octets and back."
  (serializer nil :type function :read-only t) ; a function from a message to octets
  ;; a function from octets to a message, which is not nil
  (deserializer nil :type function :read-only t))

(document-functions
  coded-type-p "True if OBJECT is a type whose messages are converted to octets by a user's
functions.")

(defun make-coded-type (name serializer deserializer)
  "Return a new type, called NAME, of messages that SERIALIZER, a function, converts to octets and
DESERIALIZER converts back."
  (lay-out-raw (%make-coded-type (copy-seq name) serializer deserializer)))

(defun code-message (type message)
  "Return the raw message of TYPE, a coded type, for MESSAGE. This calls user code."
  (let ((octets (funcall (coded-type-serializer type) message)))
    (unless (and (vectorp octets) (every (lambda (octet) (typep octet 'octet)) octets))
      (misuse "The codec of ~A converts a message to ~A, which is not a vector of octets."
              (message-type-name type)
              (printable-text (bounded-text octets :limit 200 :escape t))))
    (make-raw-message type octets)))

(defun codec-complaint (error)
  "A text about ERROR, a condition that a user's deserializer has signalled."
  (if (typep error 'storage-condition)
      "the codec has run out of memory or stack"
      (format nil "the codec says: ~A" (printable-text (bounded-text error :limit 200)))))

(defun decode-coded (type octets start end)
  "The message in the octets START to END, decoded by TYPE, a coded type. Signal a PROTOBUF-ERROR if
these cannot be decoded. This calls user code."
  (flet ((refuse (text)
           (error 'protobuf-error :type (message-type-name type) :text text)))
    (or (handler-case (funcall (coded-type-deserializer type) (subseq-octets octets start end))
          ((or error storage-condition) (error) (refuse (codec-complaint error))))
        (refuse "the codec has returned nil for it"))))
