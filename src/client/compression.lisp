;;;; Compression as the client has it (gRPC's document "Compression"): requests go compressed as
;;;; channel or call ask for, until the server has said that it does not accept that; what we accept
;;;; goes with every request.

(in-package #:clgrpc.client)

(defun begin-compression (call encoding)
  "Have CALL, which has not begun, compress with ENCODING if all servers of its channel may accept
that."
  (flet ((refuses-p (subchannel)
           (let ((accepted (trunk-accepted (trunk-of subchannel))))
             (not (or (eq :unknown accepted) (member encoding accepted))))))
    (unless (some #'refuses-p (core-subchannels (client-call-core call)))
      (setf (wire:compression-outgoing (wire:ensure-compression call)) encoding))))

(defun client-change-encoding (call name)
  "The operation CHANGE-ENCODING."
  (declare (ignore name))
  (misuse "~A has begun; its stub takes :compression." call))

(defun note-accepted-encodings (link list)
  "Remember what LINK's server accepts, if the header LIST says."
  (let ((field (hpack:find-field list "grpc-accept-encoding")))
    (when field
      (setf (trunk-accepted (link-owner link))
            (wire:accepted-encodings field)))))

(defun response-encoding (list)
  "The encoding of the response that begins with the header LIST, nil or :unknown; and its field."
  (let ((field (hpack:find-field list "grpc-encoding")))
    (values (and field (wire:parse-encoding (hpack:field-value field))) field)))

(defun encoding-problem (list)
  "Nil if we can read the encoding that the header LIST says, else (status text)."
  (multiple-value-bind (encoding field) (response-encoding list)
    (when (eq :unknown encoding)
      (list :internal (wire:unknown-encoding-text (hpack:field-value field))))))

(defun note-encodings (call list)
  "Note what the header LIST of CALL's good response says of compression. Return true if its
messages may be compressed."
  (note-accepted-encodings (wire-call-link call) list)
  (let ((encoding (response-encoding list)))
    (when encoding
      (setf (wire:compression-incoming (wire:ensure-compression call)) encoding)
      t)))
