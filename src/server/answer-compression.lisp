;;;; Compression at the server (gRPC's document "Compression"). A call has a COMPRESSION if its
;;;; request's headers or the server's default require one. Answers are compressed only by encodings
;;;; that the client accepts. Only a client that has compressed its request receives the list of
;;;; encodings that we accept, so the headers for all others stay short.

(in-package #:clgrpc.server)

(defun read-encoding (request field)
  "Note in REQUEST the encoding of its messages, which FIELD, a grpc-encoding, names. FIELD keeps
its meaning, an encoding or :identity, as a memo. An unknown name is not remembered, since a
compression of that name may be registered later."
  (let ((memo (hpack:field-memo field)))
    (if memo
        (setf (request-incoming request) (if (eq :identity memo) nil memo))
        (multiple-value-bind (encoding text) (wire:parse-encoding (hpack:field-value field))
          (setf (request-incoming request) encoding)
          (if (eq :unknown encoding)
              (setf (request-rejection request) (list :unimplemented text))
              (setf (hpack:field-memo field) (or encoding :identity)))))))

(defun begin-compression (call incoming default)
  "Give CALL its compression: INCOMING is the encoding of its request, :unknown or nil; DEFAULT is
the encoding for answers, if the client accepts it, or nil."
  (setf (wire:incoming-encoding call) (if (eq incoming :unknown) nil incoming)
        (wire:outgoing-encoding call) (acceptable-encoding call default)))

(defun acceptable-encoding (call encoding)
  "ENCODING if CALL's client accepts it, else nil."
  (find encoding (server-call-accepted call)))

(defun server-change-encoding (call name)
  "The operation CHANGE-ENCODING."
  (when (or (wire:sending-begun-p call) (call-status call))
    (misuse "It is too late to change the compression of ~A." call))
  (setf (wire:outgoing-encoding call) (acceptable-encoding call (encoding:encoding-of-name name))))
