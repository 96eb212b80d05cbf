;;;; Compression of messages (gRPC's document "Compression"): the names of encodings in
;;;; grpc-encoding and grpc-accept-encoding, and octets to octets with each. Which encodings there
;;;; are is in rpc/encoding-registry.lisp, which messages of a call are compressed in encoding.lisp.
;;;;
;;;; libz is opened when the first channel is made, to know what may be offered to servers, or when
;;;; a server first needs it. Without libz there is only `identity`, unless users register others.

(in-package #:clgrpc.wire)

(defun grpc-encoding-field (encoding)
  "The header field grpc-encoding that names ENCODING."
  (or (encoding-field encoding)
      (setf (encoding-field encoding)
            (hpack:string-field "grpc-encoding" (encoding-text encoding)))))

;; a list that RPC:ENCODINGS has returned, and the header that names those of it that can be used
(declaim (type cons **accept**))
(defglobal **accept** (cons nil nil))

(defun make-accept-field (encodings)
  "The grpc-accept-encoding that names ENCODINGS, from now on."
  (let* ((usable (remove-if-not #'encoding-open-p encodings))
         (field (hpack:string-field "grpc-accept-encoding"
                                    (format nil "~:[identity~;~:*~{~A~^,~}~]"
                                            (mapcar #'encoding-text usable)))))
    (setf **accept** (cons encodings field))
    field))

(defun forget-accept-field ()
  "The machine of a core that is started may have other libraries."
  (setf **accept** (cons nil nil)))

(pushnew 'forget-accept-field sb-ext:*save-hooks*)

(declaim (inline accepted-encodings-field))
(defun accepted-encodings-field ()
  "The grpc-accept-encoding that says what we can read."
  (let ((accept **accept**))
    (if (eq (car accept) (encodings))
        (the hpack:field (cdr accept))
        (make-accept-field (encodings)))))

(defun find-encoding (name)
  "The encoding for NAME, which RPC:CHECK-COMPRESSION has passed; nil for :identity and for nil."
  (encoding-of-name (check-compression name)))

(defun encoding-named (octets start end)
  "The encoding of ours whose name is OCTETS from START to END, or nil if there is none that can be
used."
  (declare (type octets octets) (type index start end))
  (find-if (lambda (encoding)
             (let ((name (hpack:field-value (grpc-encoding-field encoding))))
               (and (= (length name) (- end start))
                    (null (mismatch name octets :start2 start :end2 end))
                    (encoding-open-p encoding))))
           (encodings)))

(defun parse-encoding (value)
  "The encoding that VALUE, octets of grpc-encoding, names; nil for identity. For one that we cannot
read :unknown, and what to say of it."
  (cond ((octets-equal value (load-time-value (ascii-octets "identity"))) nil)
        ((encoding-named value 0 (length value)))
        (t (values :unknown (unknown-encoding-text value)))))

(defun parse-accepted-encodings (value)
  "Those of our encodings that VALUE, octets of grpc-accept-encoding, lists, each once."
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
  "Those of our encodings that FIELD, a grpc-accept-encoding, lists. FIELD remembers the result, as
long as none is registered."
  (let ((memo (hpack:field-memo field)))
    (if (and (consp memo) (eq (car memo) (encodings)))
        (cdr memo)
        (let ((encodings (encodings))
              (accepted (parse-accepted-encodings (hpack:field-value field))))
          (setf (hpack:field-memo field) (cons encodings accepted))
          accepted))))

(defconstant +quoted-octets+ 32 "How much of what a peer has sent is put into a text.")

(defun quoted-octets (octets)
  "The beginning of OCTETS, which a peer has sent, as ISO 8859-1, for a text to print or to send."
  (printable-text (map 'string #'code-char
                       (subseq octets 0 (min (1+ +quoted-octets+) (length octets))))
                  :limit +quoted-octets+ :quoted t))

(defun unknown-encoding-text (value)
  "What to say of VALUE, octets of a grpc-encoding that is :unknown."
  (format nil "grpc-encoding ~A is not supported; supported are ~{~A~^, ~}"
          (quoted-octets value) (encoding-names)))

;;; Octets to octets

(define-hot compress-octets ((encoding encoding) (level (integer 1 9)) (octets octets) (end index))
    (or null parcel)
  "Compress a message, OCTETS up to END with its prefix. Return the compressed one with its own
prefix, nil if there is no memory for that. From any thread."
  (multiple-value-bind (result result-end)
      (compressed-octets encoding level octets +prefix-octets+ end +prefix-octets+)
    (declare (type (or null octets) result) (type index result-end))
    (when result
      (setf (aref result 0) 1
            (u32be result 1) (- result-end +prefix-octets+))
      (make-parcel result result-end (- end +prefix-octets+)))))

(define-hot inflated-size ((encoding encoding) (octets octets) (start index) (end index))
    (or index (eql t))
  "How long a message will be that came compressed by ENCODING as OCTETS from START to END, t if
that is not known before it is decompressed: gzip ends with it (RFC 1952, ISIZE), if the peer is
honest."
  (if (and (eq :gzip (encoding-name encoding)) (<= 18 (- end start)))
      (u32le octets (- end 4))
      t))

;;; A message of a few KB may become one of some MB, for which a handler on the loop would hold that
;;; up for ten milliseconds; a hundred connections may each have a hundred calls with such. So
;;; the thread that finds a message to be long has another thread run the loop first. As many are
;;; decompressed at once as there are processors; else all threads of the reserve would take
;;; processors and memory from those that run loops.

(defconstant +short-octets+ 65536
  "A message that is no longer is decompressed by a thread that runs a loop.")

(declaim (type (or null sb-thread:semaphore) **decompressing**))
(defglobal **decompressing** nil)       ; counts how many more long messages may be at once

(defun decompressing-semaphore ()
  (or **decompressing**
      (let ((new (sb-thread:make-semaphore :name "clgrpc decompressing"
                                           :count (os:processor-count))))
        (or (sb-ext:compare-and-swap (symbol-value '**decompressing**) nil new)
            new))))

(defun call-by-turns (semaphore function &optional (take #'take-turn))
  "Call FUNCTION once TAKE, a function of SEMAPHORE and a notification, has taken one of the turns
that SEMAPHORE counts; return its values. In user code."
  (declare (type function function take))
  (let ((turn (sb-thread:make-semaphore-notification)))
    (unwind-protect (progn (funcall take semaphore turn)
                           (funcall function))
      (when (sb-thread:semaphore-notification-status turn)
        (sb-thread:signal-semaphore semaphore)))))

(defun take-turn (semaphore turn)
  "Wait for one of the turns that SEMAPHORE counts, and have TURN say that it is taken."
  (sb-thread:wait-on-semaphore semaphore :notification turn))

(defun decompress-octets (encoding octets end limit)
  "Decompress the message in OCTETS up to END by ENCODING. The values are those of
OS:INFLATE-OCTETS. In user code."
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
  "The status and the text for the OUTCOME of OS:INFLATE-OCTETS when that is not :ok."
  (ecase outcome
    (:too-long (values :resource-exhausted
                       (format nil "compressed message of more than ~D octets received, limit ~:*~D"
                               limit)))
    (:corrupt (values :internal "compressed message is corrupt"))
    (:truncated (values :internal "compressed message is cut short"))
    (:no-memory (values :resource-exhausted "no memory to decompress a message"))))

(defun inflation-outcome-p (outcomes status text &key (limit 0))
  "True if STATUS and TEXT are INFLATION-PROBLEM's for one of OUTCOMES and LIMIT."
  (loop for outcome in outcomes
          thereis (multiple-value-bind (its-status its-text) (inflation-problem outcome limit)
                    (and (eq its-status status) (string= its-text text)))))

(defun inflate-message (encoding octets limit)
  "OCTETS, a message that ENCODING has compressed, decompressed: octets to give back, and how many
of them it is. If it is broken or has more than LIMIT return nil, a status and a text."
  (multiple-value-bind (outcome result length)
      (expand-octets encoding octets 0 (length octets) limit)
    (if (eq :ok outcome)
        (values result length)
        (multiple-value-call #'values nil (inflation-problem outcome limit)))))

;;; If the peer of a call may compress, its messages wait wrapped, with a mark whether they are
;;; compressed.

(defstruct (packed (:constructor make-packed (parcel compressed)) (:copier nil))
  "PARCEL is a message as it came; COMPRESSED says how to read it."
  (parcel nil :type parcel)             ; the message as it came
  (compressed nil :type boolean))       ; true if it is to be decompressed

(declaim (sb-ext:freeze-type packed))

(defstruct (compression (:copier nil))
  "The compression of a call: OUTGOING is the encoding of our messages, INCOMING that of those of
the peer's messages that are compressed. ARRIVING is true if the message being delivered is
compressed, RECEIVED if the message decoded last was."
  (outgoing nil :type (or null encoding)) ; how ours are compressed, or nil
  (incoming nil :type (or null encoding)) ; how the peer's are, or nil
  (arriving nil :type boolean)          ; the loop's
  (received nil :type boolean)          ; the receiving thread's
  ;; what TOLD-SIZE says of the message that observers are told of
  (told nil :type (or index boolean)))

(declaim (sb-ext:freeze-type compression))
