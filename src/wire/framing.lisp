;;;; Length-prefixed messages (gRPC over HTTP/2, "Length-Prefixed-Message"): one octet that is 1 if
;;;; the message is compressed, four of length, the message. A message that is complete in the
;;;; received octets is delivered without a copy. Only a message that the end of a DATA frame cuts
;;;; is put together in a PARTIAL, which grows as octets arrive, whatever length the peer claims.
;;;;
;;;; A long message, to be sent or received, is a BYTE-BUFFER: octets of the image's store with an
;;;; end. The buffer has one owner at a time. The buffer of a message to send is passed from the
;;;; thread that encodes it to the connection; the buffer of a received message, from the PARTIAL to
;;;; the thread that decodes it. The last owner gives the octets back to the store.

(in-package #:clgrpc.wire)

(defconstant +prefix-octets+ 5 "The octets of the prefix of a message.")

(define-hot (write-prefix :inline t) ((octets octets) (at index) (size (unsigned-byte 32))) index
  "Write the prefix of an uncompressed message of SIZE octets into OCTETS; return the position after
the prefix."
  (setf (aref octets at) 0
        (u32be octets (1+ at)) size)
  (+ at +prefix-octets+))

(defconstant +byte-buffer-octets+ 16384
  "A message of more octets than this is a byte buffer. It fills more than a frame, and the loop
should not encode or decode it, because that takes long.")

(defstruct (byte-buffer (:constructor make-byte-buffer (octets end &optional plain)) (:copier nil))
  "A long message: OCTETS, which BORROW-OCTETS returned, up to END."
  (octets (make-octets 0) :type octets) ; a vector of BORROW-OCTETS
  (end 0 :type index)                   ; the end of the message in OCTETS
  ;; for a message of ours: its size before it was compressed, or nil
  (plain nil :type (or null index))
  (compressed nil :type boolean))       ; true if this is the peer's message in compressed form

(declaim (sb-ext:freeze-type byte-buffer))

(define-printer (byte-buffer byte-buffer)
  "~D octets" (byte-buffer-end byte-buffer))

(declaim (type octets **taken**))
(defglobal **taken** (make-octets 0))   ; the octets of a buffer from which they were taken

(define-hot byte-buffer-taken ((byte-buffer byte-buffer)) octets
  "Remove the octets from BYTE-BUFFER and return them. Signal MISUSE if the octets were removed
before, because two threads that receive on one call must not both return the octets to the store."
  (let ((octets (byte-buffer-octets byte-buffer)))
    (if (and (not (eq octets **taken**))
             (eq octets (sb-ext:compare-and-swap (byte-buffer-octets byte-buffer)
                                                 octets **taken**)))
        octets
        (misuse "One thread at a time may receive on a call: another has taken this message."))))

(defconstant +partial-growth+ 4
  "The factor by which a full PARTIAL grows.")
(defconstant +foresight+ 32
  "A PARTIAL gets room for its whole message if the message is at most this many times as long as
the part that has arrived. Therefore only a small part of a long message is copied twice: 32 KB of 1
MB. A peer can make us keep this many times the octets that it sends; its link is charged for
them.")

(defstruct (partial (:copier nil))
  "A message of which a part has arrived: first the five octets of its prefix, then its BODY."
  (prefix (make-octets +prefix-octets+) :type octets) ; up to PREFIX-FILL
  (prefix-fill 0 :type (integer 0 5))   ; 5 once the prefix is whole
  (body (load-time-value (make-octets 0)) :type octets) ; a vector of BORROW-OCTETS
  (fill 0 :type index))                 ; the number of octets of BODY that have arrived

(declaim (sb-ext:freeze-type partial))

(define-hot (partial-length :inline t) ((partial partial)) (unsigned-byte 32)
  (u32be (partial-prefix partial) 1))

(define-hot (partial-room :inline t) ((partial partial)) index
  "The number of octets of memory of PARTIAL's message, with which the call is charged. It is at
most +FORESIGHT+ times the length of the part that has arrived."
  (min (length (partial-body partial)) (partial-length partial)))

(define-hot grown-length ((length (unsigned-byte 32)) (fill index) (more index)) index
  "Return the new length of the body of a PARTIAL that has FILL octets of a message of LENGTH octets
and needs room for MORE octets."
  (if (<= length (* +foresight+ (+ fill more)))
      length
      (max (* +partial-growth+ fill) (+ fill more))))

(defconstant +own-octets+ 524288
  "The minimum length in octets of a message that is put together in a fresh vector of its length,
so that this vector can become the value of a field that fills the message. A shorter message uses a
vector of the store.")

(defconstant +long-beginning-octets+ 32768
  "The minimum length of the vector in which a message of more than +BYTE-BUFFER-OCTETS+ begins.")

(define-hot fresh-body ((length index) (final (unsigned-byte 32))) octets
  "Return a vector with room for the first LENGTH octets of a message that will have FINAL octets."
  (cond ((= (max length +own-octets+) final) (make-raw-vector length octet))
        ((< +byte-buffer-octets+ final) (borrow-octets (max length +long-beginning-octets+)))
        (t (borrow-octets length))))

(define-hot grow-partial ((partial partial) (count index)) boolean
  "Make room for COUNT more octets of PARTIAL's message; return false if the heap has no room."
  (let ((fill (partial-fill partial))
        (body (partial-body partial)))
    (handler-case
        (let ((new (fresh-body (grown-length (partial-length partial) fill count)
                               (partial-length partial))))
          (copy-octets body 0 fill new 0)
          (setf (partial-body partial) new)
          (give-octets-back body)
          t)
      (storage-condition () nil))))

(define-hot add-to-partial ((partial partial) (octets octets) (start index) (end index))
    (or null index)
  "Copy octets into PARTIAL's message; return the position after the last octet copied, or NIL if
the heap has no room."
  (let* ((fill (partial-fill partial))
         (count (min (- (partial-length partial) fill) (- end start))))
    (declare (type index count))
    (when (or (<= (+ fill count) (length (partial-body partial)))
              (grow-partial partial count))
      (copy-octets octets start (+ start count) (partial-body partial) fill)
      (setf (partial-fill partial) (+ fill count))
      (+ start count))))

(define-hot add-to-prefix ((partial partial) (octets octets) (start index) (end index)) index
  (let ((count (min (- +prefix-octets+ (partial-prefix-fill partial)) (- end start))))
    (copy-octets octets start (+ start count)
                 (partial-prefix partial) (partial-prefix-fill partial))
    (incf (partial-prefix-fill partial) count)
    (+ start count)))

(define-hot (partial-complete-p :inline t) ((partial partial)) boolean
  (and (= +prefix-octets+ (partial-prefix-fill partial))
       (= (partial-fill partial) (partial-length partial))))
