;;;; Compression as the server has it (gRPC's document "Compression"): what a request's headers say
;;;; of it becomes the COMPRESSION of the call, if they or the server's default ask for any. Answers
;;;; are compressed only in a way that the client has said it accepts; a client that has compressed
;;;; is told what we accept, all others know nothing of it, so that their answers stay short.

(in-package #:clgrpc.server)

(defun read-encoding (request field)
  "Note in REQUEST that its messages may be compressed as FIELD, a grpc-encoding, says. What that is
is found out once: an encoding, :identity, or the rejection of requests that have it."
  (let ((memo (or (hpack:field-memo field)
                  (setf (hpack:field-memo field) (encoding-memo (hpack:field-value field))))))
    (cond ((consp memo)
           (setf (request-incoming request) :unknown
                 (request-rejection request) memo))
          (t (setf (request-incoming request) (if (eq :identity memo) nil memo))))))

(defun encoding-memo (value)
  (let ((encoding (wire:parse-encoding value)))
    (case encoding
      ((nil) :identity)
      (:unknown (list :unimplemented (wire:unknown-encoding-text value)))
      (t encoding))))

(defun begin-compression (call incoming default)
  "Give CALL its compression: INCOMING is an encoding, :unknown or nil, as its request said, DEFAULT
the encoding for answers, if the client accepts it, or nil."
  (let ((compression (wire:ensure-compression call)))
    (setf (wire:compression-incoming compression) (if (eq incoming :unknown) nil incoming)
          (wire:compression-outgoing compression) (acceptable-encoding call default))))

(defun acceptable-encoding (call encoding)
  "ENCODING if CALL's client accepts that, else nil."
  (find encoding (server-call-accepted call)))

(defun server-change-encoding (call name)
  "The operation CHANGE-ENCODING."
  (when (or (let ((outlet (wire:call-wire-outlet call)))
              (and outlet (wire:wire-outlet-begun outlet)))
            (call-status call))
    (misuse "It is too late to change the compression of ~A." call))
  (setf (wire:compression-outgoing (wire:ensure-compression call))
        (acceptable-encoding call (wire:find-encoding name))))

(defun encode-compression-fields (call encoder buffer)
  "Append to CALL's first header block what it says of compression: called only if it has one."
  (wire:encode-encodings call encoder buffer)
  (wire:encode-accepted-encodings encoder buffer))
