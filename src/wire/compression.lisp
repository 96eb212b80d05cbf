;;;; Compression of messages (gRPC's document "Compression"): the names of encodings in
;;;; grpc-encoding and grpc-accept-encoding, and the compression of octets. The registry of
;;;; encodings is in encoding/encoding-registry.lisp; encoding.lisp decides which messages of a call
;;;; are compressed.
;;;;
;;;; libz is opened when the first channel is made, so that the encodings to offer to servers are
;;;; known, or when a server first needs it. Without libz the only encoding is `identity`, unless
;;;; users register others.

(in-package #:clgrpc.wire)

(declaim (type list **encoding-fields**))
(defglobal **encoding-fields** '())     ; an alist from encodings to header fields; atomic

(defun grpc-encoding-field (encoding)
  (or (cdr (assoc encoding **encoding-fields** :test #'eq))
      (let ((field (hpack:string-field "grpc-encoding" (encoding-text encoding))))
        (sb-ext:atomic-push (cons encoding field) **encoding-fields**)
        field)))

;; (encodings . field): a value of ENCODING:ENCODINGS, and the header that names the usable ones
(declaim (type cons **accept**))
(defglobal **accept** (cons nil nil))

(defun usable-texts (encodings)
  "Return the names, as in headers, of those ENCODINGS that are usable."
  (mapcar #'encoding-text (remove-if-not #'encoding-open-p encodings)))

(defun make-accept-field (encodings)
  "Make, store and return the field grpc-accept-encoding that names ENCODINGS."
  (let ((field (hpack:string-field "grpc-accept-encoding"
                                   (format nil "~:[identity~;~:*~{~A~^,~}~]"
                                           (usable-texts encodings)))))
    (setf **accept** (cons encodings field))
    field))

(defun forget-accept-field ()
  "Forget the header, because a saved core may be started on a machine with other libraries."
  (setf **accept** (cons nil nil)))

(pushnew 'forget-accept-field sb-ext:*save-hooks*)

(declaim (inline accepted-encodings-field))
(defun accepted-encodings-field ()
  "The field grpc-accept-encoding with the encodings that this end can read."
  (let ((accept **accept**))
    (if (eq (car accept) (encodings))
        (the hpack:field (cdr accept))
        (make-accept-field (encodings)))))

(defun encoding-named (octets start end)
  "Return the usable encoding whose name is OCTETS from START to END, or nil if there is none."
  (declare (type octets octets) (type index start end))
  (find-if (lambda (encoding)
             (let ((name (hpack:field-value (grpc-encoding-field encoding))))
               (and (= (length name) (- end start))
                    (null (mismatch name octets :start2 start :end2 end))
                    (encoding-open-p encoding))))
           (encodings)))

(defun parse-encoding (value)
  "Return the encoding that VALUE, octets of grpc-encoding, names, or nil for identity. For an
encoding that this end cannot read, return :unknown and the text of the error."
  (cond ((octets-equal value (load-time-value (ascii-octets "identity"))) nil)
        ((encoding-named value 0 (length value)))
        (t (values :unknown (unknown-encoding-text value)))))

(defun parse-accepted-encodings (value)
  "Return the list of our encodings that VALUE, octets of grpc-accept-encoding, names, without
duplicates."
  (declare (type octets value))
  (flet ((blank-p (octet) (or (= octet 32) (= octet 9))))
    (let ((encodings '()))
      (loop with length = (length value)
            for start = 0 then (1+ comma)
            for comma = (or (position #.(char-code #\,) value :start start) length)
            for from = (or (position-if-not #'blank-p value :start start :end comma) comma)
            for to = (or (position-if-not #'blank-p value :start from :end comma :from-end t)
                         (1- comma))
            for encoding = (encoding-named value from (max from (1+ to)))
            when encoding do (pushnew encoding encodings)
            while (< comma length))
      (nreverse encodings))))

(defun accepted-encodings (field)
  "Return the list of our encodings that FIELD, a grpc-accept-encoding, names. FIELD keeps the
result until another encoding is registered."
  (let ((memo (hpack:field-memo field)))
    (if (and (consp memo) (eq (car memo) (encodings)))
        (cdr memo)
        (let ((encodings (encodings))
              (accepted (parse-accepted-encodings (hpack:field-value field))))
          (setf (hpack:field-memo field) (cons encodings accepted))
          accepted))))

(defun unknown-encoding-text (value)
  "The text of the error for VALUE, octets of a grpc-encoding that is :unknown."
  (format nil "grpc-encoding ~A is not supported; supported are ~{~A, ~}identity"
          (quoted-octets value) (usable-texts (encodings))))

;;; Octets to octets

(define-hot compress-octets ((encoding encoding) (level (integer 1 9)) (octets octets) (end index))
    (or null byte-buffer)
  "Compress a message, OCTETS up to END with its prefix. Return the compressed message with a new
prefix, or nil if there is no memory for it. From any thread."
  (multiple-value-bind (result result-end)
      (compressed-octets encoding level octets +prefix-octets+ end +prefix-octets+)
    (declare (type (or null octets) result) (type index result-end))
    (when result
      (setf (aref result 0) 1
            (u32be result 1) (- result-end +prefix-octets+))
      (make-byte-buffer result result-end (- end +prefix-octets+)))))

(define-hot inflated-size ((encoding encoding) (octets octets) (start index) (end index))
    (or index (eql t))
  "Return the decompressed length of a message that was received, compressed by ENCODING, as OCTETS
from START to END, or t if it is not known before decompression. Data of gzip end with this length
(RFC 1952, ISIZE), but a peer may send a wrong length."
  (if (and (eq :gzip (encoding-name encoding)) (<= 18 (- end start)))
      (u32le octets (- end 4))
      t))

;;; A message of a few KB may become one of several MB, whose decompression would block the loop for
;;; ten milliseconds; a hundred connections may each have a hundred calls with such messages. So a
;;; thread that finds that a message is long first hands the loop to another thread. At most as many
;;; messages are decompressed at once as there are processors; otherwise all threads of the reserve
;;; would take processors and memory from the threads that run loops.

(defconstant +short-octets+ 65536
  "The maximum length in octets of a message that a thread that runs a loop decompresses.")

(declaim (type (or null sb-thread:semaphore) **decompressing**))
;; a semaphore that counts the further long messages that may be decompressed at once
(defglobal **decompressing** nil)

(defun decompressing-semaphore ()
  (or **decompressing**
      (let ((new (sb-thread:make-semaphore :name "clgrpc decompressing"
                                           :count (os:processor-count))))
        (or (sb-ext:compare-and-swap (symbol-value '**decompressing**) nil new)
            new))))

(defun call-by-turns (semaphore function &key (take #'take-turn) around-wait)
  "Take one of SEMAPHORE's turns by calling TAKE with SEMAPHORE and a notification. Then call
FUNCTION, give the turn back, and return FUNCTION's values. If AROUND-WAIT, a function, is given,
FUNCTION has no turn while it waits for room. AROUND-WAIT is called with true before such a wait,
and with false when FUNCTION has a turn again. Call this in user code."
  (declare (type function function take) (type (or null function) around-wait))
  (let ((turn (sb-thread:make-semaphore-notification)))
    (flet ((take () (funcall take semaphore turn))
           (give-back ()
             (sb-sys:without-interrupts
               (when (sb-thread:semaphore-notification-status turn)
                 (sb-thread:clear-semaphore-notification turn)
                 (sb-thread:signal-semaphore semaphore)))))
      (unwind-protect (progn (take)
                             (if around-wait
                                 (loop:call-releasing (lambda ()
                                                        (funcall around-wait t)
                                                        (give-back))
                                                      (lambda ()
                                                        (take)
                                                        (funcall around-wait nil))
                                                      function)
                                 (funcall function)))
        (give-back)))))

(defun take-turn (semaphore turn)
  "Wait for one of the turns that SEMAPHORE counts, and note in TURN, a notification, that this
thread has it."
  (sb-thread:wait-on-semaphore semaphore :notification turn))

(defun decompress-octets (encoding octets end limit)
  "Decompress the message in OCTETS up to END by ENCODING. Return the values of OS:INFLATE-OCTETS.
Call this in user code."
  (flet ((inflate (limit)
           (expand-octets encoding octets 0 end limit)))
    (let* ((short (min limit +short-octets+))
           (size (inflated-size encoding octets 0 end)))
      (multiple-value-bind (outcome result length)
          (if (and (integerp size) (< short size)) :too-long (inflate short))
        (cond ((not (and (eq :too-long outcome) (< short limit)))
               (values outcome result (or length 0)))
              ((loop:prepare-to-wait)
               (call-by-turns (decompressing-semaphore) (lambda () (inflate limit))))
              (t (inflate limit)))))))

(defun inflation-problem (outcome limit)
  "Return the status and the text of the error for OUTCOME, a value of OS:INFLATE-OCTETS other than
:ok."
  (ecase outcome
    (:too-long (values :resource-exhausted
                       (format nil "compressed message of more than ~D octets received, limit ~:*~D"
                               limit)))
    (:corrupt (values :internal "compressed message is corrupt"))
    (:truncated (values :internal "compressed message is cut short"))
    (:no-memory (values :resource-exhausted "no memory to decompress a message"))))

(defstruct (compression (:copier nil))
  "The compression of a call: OUTGOING is the encoding of our messages, INCOMING the encoding of the
peer's compressed messages. ARRIVING is true if the message that is being delivered is compressed.
RECEIVED is true if the message that was decoded last was compressed. FAILURE is the reason of a
failed decompression."
  (outgoing nil :type (or null encoding)) ; the encoding of our messages, or nil
  (incoming nil :type (or null encoding)) ; the encoding of the peer's messages, or nil
  (arriving nil :type boolean)          ; the loop's
  (received nil :type boolean)          ; the receiving thread's
  ;; nil, or the outcome of OS:INFLATE-OCTETS, not :ok, because of which the call was ended
  (failure nil :type symbol)
  ;; the value of TOLD-SIZE for the message reported to observers
  (told nil :type (or index boolean)))

(declaim (sb-ext:freeze-type compression))
