;;;; Tracers: switches for detailed events, each for one part of the library, like the switches of
;;;; gRPC's GRPC_TRACE. Tracers that gRPC has as well have its names. The events go to the log
;;;; (log.lisp) with the level :trace. A tracer that is off costs a load and a test of a bit.
;;;;
;;;; GRPC_TRACE and GRPC_VERBOSITY are read when the first channel or server of a process is made,
;;;; so a saved image does not keep their values from the time when it was made.

(in-package #:clgrpc.base)

(defstruct (tracer (:copier nil))
  "A row of the table of tracers."
  (name :none :type keyword)            ; a keyword
  (text "" :type string)                ; the tracer's name in GRPC_TRACE
  (aliases '() :type list)              ; other names for it
  (meaning "" :type string)             ; the subject of its events
  (mask 0 :type fixnum))                ; the tracer's bit

(define-printer (tracer tracer)
  "~A: ~A" (tracer-text tracer) (tracer-meaning tracer))

(document-functions
  tracer-name "The keyword of TRACER, an element of TRACERS."
  tracer-text "The name of TRACER in GRPC_TRACE, such as \"connectivity_state\"."
  tracer-aliases "Other names of TRACER in GRPC_TRACE, a list of strings."
  tracer-meaning "The subject of the events that TRACER logs, as text.")

(defglobal **tracers** '())

(declaim (type fixnum **traced**))
(defglobal **traced** 0)

(defmacro define-tracers (&body rows)
  "Define the table of tracers from ROWS of the form (name aliases meaning)."
  `(setf **tracers**
         (list ,@(loop for (name aliases meaning) in rows
                       for mask = 1 then (ash mask 1)
                       collect `(make-tracer :name ,name :aliases ',aliases :meaning ,meaning
                                             :mask ,mask
                                             :text ,(substitute #\_ #\-
                                                                (string-downcase name)))))))

(define-tracers
  (:call ("call_stream")
   "calls at both ends: begin, stream and end, with the time of each phase")
  (:channel ("client_channel")
   "channels made and closed; calls that begin to wait for a connection or a stream")
  (:connectivity-state ()
   "the states of channels")
  (:dns-resolver ("resolver" "cares_resolver")
   "names looked up, and the addresses they have")
  (:flowctl ()
   "windows: WINDOW_UPDATE in and out; window withheld from a peer because too much waits here")
  (:handshaker ("tls" "transport_security" "tsi")
   "TLS handshakes and HTTP/2's settings, done and failed")
  (:http ("http2" "transport")
   "every HTTP/2 frame in and out")
  (:http-keepalive ("keepalive")
   "PINGs of the keepalive, connections that are idle, old or silent")
  (:loop ("event_engine")
   "threads: loops that change hands, methods that block")
  (:server ("server_channel" "server_call")
   "connections of servers begun and ended, handlers begun and ended")
  (:subchannel ()
   "connections of channels: attempts, failures, back-off, GOAWAY")
  (:tcp ("event_engine_endpoint")
   "octets read and written"))

(defun tracer-table ()
  "Return the list of all tracers; see TRACER-NAME, TRACER-TEXT and TRACER-MEANING. From any
thread."
  **tracers**)

(defmacro tracing-p (&rest names)
  "True if any of the tracers NAMES, keywords that are not evaluated, is on. From any thread."
  `(logtest ,(loop for name in names
                   for tracer = (find name **tracers** :key #'tracer-name)
                   do (assert tracer () "There is no tracer ~S." name)
                   sum (tracer-mask tracer))
            **traced**))

(defmacro trace-event (name event &rest plist)
  "If the tracer NAME is on, log EVENT and PLIST, which are evaluated only then. Return nil. From
any thread."
  `(when (tracing-p ,name)
     (log-event :trace ,event :tracer ,name ,@plist)
     nil))

;;; Switching

(defun glob-p (pattern text)
  "True if TEXT matches PATTERN, in which * stands for any text and ? for any character."
  (labels ((match (p i)
             (cond ((= p (length pattern)) (= i (length text)))
                   ((char= #\* (char pattern p))
                    (loop for j from i to (length text) thereis (match (1+ p) j)))
                   ((= i (length text)) nil)
                   ((find (char pattern p) (list #\? (char text i))) (match (1+ p) (1+ i))))))
    (match 0 0)))

(defun word-mask (word)
  "Return the bits of the tracers that WORD, a word of GRPC_TRACE, denotes, or 0 if it denotes
none."
  (let ((pattern (if (string= word "all") "*" word)))
    (loop for tracer in **tracers**
          when (some (lambda (text) (glob-p pattern text))
                     (cons (tracer-text tracer) (tracer-aliases tracer)))
            sum (tracer-mask tracer))))

(defun parse-tracers (string)
  "Return the bits of the tracers that STRING, names separated by commas, switches on; a later name
overrides earlier names. The second value is a list of the unknown words."
  (let ((traced 0) (unknown '()))
    (dolist (word (split-list (string-downcase string)))
      (let* ((off (char= #\- (char word 0)))
             (mask (word-mask (if off (subseq word 1) word))))
        (cond ((member word '("none" "-all") :test #'string=) (setf traced 0))
              ((zerop mask) (push word unknown))
              (off (setf traced (logandc2 traced mask)))
              (t (setf traced (logior traced mask))))))
    (values traced (nreverse unknown))))

(defun tracers ()
  "Return the names of the tracers that are on, a list of keywords. SETF with such a list, or with a
string in the form of GRPC_TRACE, switches tracers on and all others off. The string has names
separated by commas, `all`, and patterns such as `http*`. A minus before a name switches off a
tracer that an earlier name has switched on, as in \"all,-http\". Signal MISUSE for a name without a
tracer; (TRACER-TABLE) lists all tracers. The tracers' events go to *LOG-FUNCTION*, or while that is
NIL to *ERROR-OUTPUT*. From any thread."
  (loop for tracer in **tracers**
        when (logtest (tracer-mask tracer) **traced**) collect (tracer-name tracer)))

(defun (setf tracers) (names)
  (multiple-value-bind (traced unknown)
      (parse-tracers (if (stringp names)
                         names
                         (format nil "~{~A~^,~}"
                                 (mapcar (lambda (name) (substitute #\_ #\- (string name)))
                                         names))))
    (when unknown
      (misuse "There is no tracer ~A; the tracers are ~{~A~^, ~}." (first unknown)
              (mapcar #'tracer-text **tracers**)))
    (setf **traced** traced)
    names))
