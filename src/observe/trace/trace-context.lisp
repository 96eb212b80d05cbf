;;;; Trace contexts, which go from process to process: the trace's id, the id of the span that is
;;;; the parent of the other process's spans, and whether the trace is recorded. The header
;;;; traceparent of W3C Trace Context (https://www.w3.org/TR/trace-context/, section 3.2)
;;;;
;;;;   00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01
;;;;   version, trace id, parent id, flags; of which only 1, sampled, has a meaning
;;;;
;;;; and gRPC's grpc-trace-bin, the binary format of OpenCensus:
;;;;
;;;;   0 | 0 trace id (16 octets) | 1 span id (8) | 2 flags (1)
;;;;
;;;; Parsers are strict: malformed text counts as absent, and begins a new trace. Of a version above
;;;; 00 the first 55 characters are read, and more may follow only after a dash; the version ff is
;;;; invalid. We always send version 00.

(in-package #:clgrpc.trace)

(defstruct (span-context (:constructor nil) (:copier nil))
  "The place of a span: its trace, and its id there."
  (high 0 :type id :read-only t)        ; the first half of the trace id
  (low 0 :type id :read-only t)         ; the other
  (id 0 :type id :read-only t))         ; the span id

(declaim (inline make-trace-context))   ; so that ids are not boxed
(defstruct (trace-context (:include span-context) (:conc-name context-) (:copier nil))
  "The place of a span in its trace, and the data that go with it from process to process. A context
that has only a baggage is BARE-P: it is in no trace."
  (sampled nil :type boolean :read-only t) ; the trace is recorded
  (remote nil :type boolean :read-only t) ; true if the context came from another process
  (state "" :type simple-string :read-only t) ; the tracestate as it is passed on, or ""
  (baggage "" :type simple-string :read-only t)) ; likewise

(defconstant +traceparent-octets+ 55
  "How long a traceparent of version 00 is.")

(declaim (sb-ext:freeze-type trace-context))

(document-functions
  context-state "The tracestate of CONTEXT as text, empty if it has none.")

(define-hot (bare-p :inline t) ((context trace-context)) boolean
  "True if CONTEXT is in no trace."
  (and (zerop (context-low context)) (zerop (context-high context))))

(defun with-other-baggage (context text)
  "CONTEXT, or a bare one if that is nil, with the baggage TEXT."
  (if context
      (make-trace-context :high (context-high context) :low (context-low context)
                          :id (context-id context) :sampled (context-sampled context)
                          :remote (context-remote context) :state (context-state context)
                          :baggage text)
      (make-trace-context :baggage text)))

(defun trace-id (context)
  "Return the trace id of CONTEXT, which CURRENT-TRACE returned, as 32 hexadecimal digits. From any
thread."
  (let ((text (make-string 32 :element-type 'base-char)))
    (write-hex (context-high context) 16 text 0)
    (write-hex (context-low context) 16 text 16)
    text))

(defun span-id (context)
  "Return the id of the span of CONTEXT, which CURRENT-TRACE returned, as 16 hexadecimal digits.
From any thread."
  (let ((text (make-string 16 :element-type 'base-char)))
    (write-hex (context-id context) 16 text 0)
    text))

(defun trace-sampled-p (context)
  "True if the trace of CONTEXT, which CURRENT-TRACE returned, is recorded. From any thread."
  (context-sampled context))

(define-printer (context trace-context)
  "~A ~A~:[~; sampled~]~:[~; remote~]" (trace-id context) (span-id context)
  (context-sampled context) (context-remote context))

(defun id-octets (&rest ids)
  "The octets of IDS, eight for each, in the order of IDS."
  (let ((octets (make-octets (* 8 (length ids)))))
    (loop for id in ids
          for at from 0 by 8
          do (dotimes (i 8) (setf (aref octets (+ at i)) (ldb (byte 8 (- 56 (* 8 i))) id))))
    octets))

(defun octets-id (octets start)
  (loop with id = 0
        for i from start repeat 8
        do (setf id (logior (ash id 8) (aref octets i)))
        finally (return id)))

(defun context-trace-id-octets (context)
  "The trace id of CONTEXT, 16 octets."
  (id-octets (context-high context) (context-low context)))

(defun context-span-id-octets (context)
  "The span id of CONTEXT, 8 octets."
  (id-octets (context-id context)))

(defun context-flags (context)
  "The trace flags of CONTEXT, an octet: 1 if it is sampled."
  (if (context-sampled context) 1 0))

;;; traceparent

(define-hot (blank-p :inline t) ((code octet)) boolean
  "True of the character codes of a space and a tab, the optional white space of HTTP."
  (or (= code 32) (= code 9)))

(define-hot traceparent-bounds ((octets octets)) (values index index)
  "Two values: the begin and the end of the text in OCTETS without the white space around it."
  (let ((start 0) (end (length octets)))
    (declare (type index start end))
    (loop while (and (< start end) (blank-p (aref octets start))) do (incf start))
    (loop while (and (< start end) (blank-p (aref octets (1- end)))) do (decf end))
    (values start end)))

(define-hot read-traceparent ((octets octets) (state simple-string)) (or null trace-context)
  "The context in OCTETS, the value of a header traceparent, with STATE; nil if OCTETS are
malformed."
  (multiple-value-bind (start end) (traceparent-bounds octets)
    (declare (type index start end))
    (let ((size (- end start)))
      (declare (type fixnum size))
      (flet ((dash-p (i)
               (declare (type index i))
               (= #.(char-code #\-) (aref octets (+ start i))))
             (hex (from to)
               (declare (type index from to))
               (read-hex octets (+ start from) (+ start to))))
        (declare (inline dash-p hex))
        (when (and (>= size +traceparent-octets+)
                   (dash-p 2) (dash-p 35) (dash-p 52))
          (let ((version (hex 0 2)) (high (hex 3 19)) (low (hex 19 35)) (span (hex 36 52))
                (flags (hex 53 55)))
            (when (and version high low span flags
                       (/= version 255)
                       (or (= size +traceparent-octets+)
                           (and (plusp version) (dash-p 55)))
                       (not (and (zerop high) (zerop low)))
                       (plusp span))
              (make-trace-context :high high :low low :id span :sampled (logtest 1 flags)
                                  :remote t :state state))))))))

(defun parse-traceparent (text)
  "Return the context in TEXT, a traceparent of W3C Trace Context; nil if TEXT is malformed. This is
for contexts that arrive in other ways than by calls, such as in a message. From any thread."
  (and (every (lambda (char) (< (char-code char) 128)) text)
       (read-traceparent (ascii-octets text) "")))

(define-hot write-traceparent ((high id) (low id) (span id) (sampled boolean)) simple-base-string
  "The traceparent for the SPAN of the trace HIGH and LOW."
  (let ((text (make-string +traceparent-octets+ :element-type 'base-char)))
    (setf (schar text 0) #\0 (schar text 1) #\0 (schar text 2) #\-
          (schar text 35) #\- (schar text 52) #\-
          (schar text 53) #\0 (schar text 54) (if sampled #\1 #\0))
    (write-hex high 16 text 3)
    (write-hex low 16 text 19)
    (write-hex span 16 text 36)
    text))

(defun traceparent (context)
  "Return the traceparent of W3C Trace Context for CONTEXT, which CURRENT-TRACE returned: a text to
pass on in other ways than by calls, for PARSE-TRACEPARENT. From any thread."
  (write-traceparent (context-high context) (context-low context) (context-id context)
                     (context-sampled context)))

;;; grpc-trace-bin

(defconstant +trace-bin-octets+ 29
  "The number of octets of a grpc-trace-bin.")

(defun read-trace-bin (octets)
  "The context in OCTETS, the value of a header grpc-trace-bin; nil if they are malformed."
  (flet ((octet-p (at value) (= value (aref octets at))))
    (when (and (= +trace-bin-octets+ (length octets))
               (octet-p 0 0) (octet-p 1 0) (octet-p 18 1) (octet-p 27 2))
      (let ((high (octets-id octets 2)) (low (octets-id octets 10)) (span (octets-id octets 19)))
        (unless (or (zerop span) (and (zerop high) (zerop low)))
          (make-trace-context :high high :low low :id span :remote t
                              :sampled (logtest 1 (aref octets 28))))))))

(defun write-trace-bin (high low span sampled)
  "The grpc-trace-bin for the SPAN of the trace HIGH and LOW, octets."
  (let ((octets (make-octets +trace-bin-octets+)))
    (replace octets (id-octets high low) :start1 2)
    (replace octets (id-octets span) :start1 19)
    (setf (aref octets 18) 1
          (aref octets 27) 2
          (aref octets 28) (if sampled 1 0))
    octets))
