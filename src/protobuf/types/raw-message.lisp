;;;; Raw messages: messages that are handed on as the octets that came, such as by a gateway. A
;;;; RAW-TYPE is a message type whose messages are these; it may know the type that they would be
;;;; decoded as.

(in-package #:clgrpc.protobuf)

(defstruct (raw-type (:include message-type) (:copier nil) (:predicate raw-type-p)
                     (:constructor %make-raw-type (name decoded finder)))
  "A type of messages that are not decoded."
  (decoded nil :type (or null message-type) :read-only t) ; what the octets are of, if it is known
  (finder nil :type (or null function) :read-only t)) ; finds types by name, for JSON

(document-functions
  raw-type-p "True if OBJECT is a type of messages that are not decoded."
  raw-type-decoded "The message type whose messages the octets of TYPE, a raw type, are; or nil."
  raw-type-finder "The :FINDER for JSON of messages of TYPE, a raw type, or nil.")

(declaim (inline raw-message-octets))
(defun raw-message-octets (message)
  "The octets of MESSAGE, a raw one. Do not change them."
  (the octets (svref (dynamic-contents (the dynamic-message message)) 0)))


(defun make-raw-type (name &optional decoded finder)
  "Return a new type, called NAME, of messages that are not decoded. Their octets are messages of
DECODED, a message type, if that is given; FINDER finds types by name, as :FINDER for JSON does."
  (let* ((type (%make-raw-type (copy-seq name) decoded finder))
         (layout (make-layout :type type)))
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
  "The type of raw messages of which no more is known.")

(defun make-raw-message (type octets)
  "Return the message of TYPE, a raw type, that is OCTETS, which must not change."
  (make-dynamic-message (message-type-layout type) (vector (coerce octets 'octets))))

(defun raw-message (octets)
  "Return the message that is OCTETS, for methods whose types are not known here. OCTETS must not
change."
  (make-raw-message **raw-type** octets))

(defun raw-message-p (object)
  "True if OBJECT is a message that was not decoded."
  (and (dynamic-message-p object)
       (raw-type-p (layout-type (dynamic-layout object)))))
