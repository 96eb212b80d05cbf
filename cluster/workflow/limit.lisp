;;;; The limits of workflows, nodes and calls, and the checks of names. etcd accepts no request of
;;;; more than 1.5 MB. The limits fit together: the payloads of one change, at most
;;;; MAX-PAYLOAD-OCTETS, a state of MAX-STATE-OCTETS, and the octets that its last change may add. A
;;;; workflow whose state grows beyond that fails while its failure can still be stored.

(in-package #:clgrpc.workflow)

(defstruct (limits (:copier nil))
  "Limits of a node; see MAKE-WORKFLOW-SERVICE."
  ;; octets of the inputs of one request to start, of a signal's payload, of a result with the
  ;; inputs of the steps it adds
  (max-payload-octets 1000000 :type (integer 1 1000000) :read-only t)
  (max-steps 256 :type (integer 1 1000) :read-only t) ; the most steps of a workflow
  (max-changes 5000 :type (integer 10 100000) :read-only t) ; changes of a workflow, its history
  (max-state-octets 400000 :type (integer 1000 400000) :read-only t) ; octets of a workflow's state
  ;; signals of a workflow for which no step has waited yet
  (max-signals 100 :type (integer 1 1000) :read-only t)
  (max-children 100 :type (integer 1 1000) :read-only t) ; the most children of a step
  (max-depth 8 :type (integer 0 100) :read-only t) ; how many levels children may nest
  (max-schedules 1000 :type (integer 1) :read-only t) ; the most schedules of a namespace
  (max-running 1000000 :type (integer 1) :read-only t) ; workflows that have not ended
  ;; octets that the store's file may have; nil: the store's own quota, or etcd's default
  (store-quota nil :type (or null (integer 1)) :read-only t)
  ;; the share of the quota beyond which no workflow is started
  (max-store-share 7/10 :type (real (0) 1) :read-only t)
  (max-sessions 100000 :type (integer 1) :read-only t) ; the most open sessions
  ;; the most sessions of one certificate's identity
  (max-sessions-per-identity 1000 :type (integer 1) :read-only t)
  ;; how long a session may last without a heartbeat
  (max-session-seconds 120 :type (integer 2 3600) :read-only t)
  (max-held 1000 :type (integer 1) :read-only t) ; tasks of one session
  (max-waiting-claims 10000 :type (integer 1) :read-only t) ; the most claims that wait at a node
  ;; the most waiting claims of one session
  (max-waiting-claims-per-session 1000 :type (integer 1) :read-only t)
  ;; the most waiting claims of one certificate's identity
  (max-waiting-claims-per-identity 5000 :type (integer 1) :read-only t)
  (max-watches 20000 :type (integer 1) :read-only t) ; the most watches of a node
  (max-watches-per-peer 10000 :type (integer 1) :read-only t) ; the most watches of one address
  (max-tasks 16 :type (integer 1 16) :read-only t) ; the most tasks of a claim
  ;; how long an attempt may take if its step has no limit; nil: for ever
  (attempt-seconds 3600 :type (or null (real (0))) :read-only t)
  ;; octets of all ended workflows, beyond which the oldest is deleted; nil: no limit
  (retention-octets nil :type (or null (integer 1)) :read-only t)
  ;; how long an ended workflow is kept; nil: for ever
  (retention-seconds 604800 :type (or null (real 0)) :read-only t))

(declaim (sb-ext:freeze-type limits))

(defun limit-names ()
  "Return the names of the limits of MAKE-WORKFLOW-SERVICE, keywords. From any thread."
  (loop for slot in (sb-mop:class-slots (find-class 'limits))
        collect (intern (symbol-name (sb-mop:slot-definition-name slot)) '#:keyword)))

(defun check-limit (name value)
  "Return VALUE if it is valid for the limit NAME, a keyword; signal MISUSE if not. From any
thread."
  (unless (member name (limit-names)) (misuse "~(~A~) is not a limit of workflows." name))
  (handler-case (progn (make-limits name value) value)
    (type-error () (misuse "The limit ~(~A~) cannot be ~A." name value))))

(defconstant +default-store-quota+ 2147483648 "The quota of etcd by default, in octets.")
(defconstant +most-operations+ 120
  "The maximum number of operations of one transaction; etcd accepts 128.")
(defconstant +most-payloads+ 90
  "The maximum number of payloads of one change; etcd accepts 128 operations in a transaction.")
(defconstant +most-parts+ 100
  "The maximum number of payloads and chunks of steps, together, of one change.")
(defconstant +most-steps-at-once+ 64
  "The maximum number of steps, done as soon as they begin, in one change. It is limited because
each chunk of steps is an operation of the transaction.")
(defconstant +small-octets+ 256
  "The maximum number of octets of a payload that is part of the state; a larger payload has a key
of its own.")
(defconstant +history-chunk+ 16 "The number of changes of a history that get a key of their own.")
(defconstant +longest-name+ 128 "The maximum number of octets of an id, a kind or a name.")
(defconstant +longest-text+ 2000
  "The maximum number of octets of a reason or an error that are kept.")
(defconstant +most-held+ 10000 "The maximum number of tasks in a worker's heartbeat.")
(defconstant +default-attempts+ 10)
(defconstant +free-losses+ 3 "The number of losses in a row after each of which the attempt is
repeated at once.")
(defconstant +most-losses+ 20 "How often in a row a step may be lost before it fails.")
(defconstant +child-seconds+ 3600
  "The minimum time for which an ended child is kept, so that its parent gets its result.")
(defconstant +most-catch-up+ 100 "The maximum number of missed times that a schedule makes up for.")
(defconstant +most-children+ 1000
  "The maximum value of MAX-CHILDREN, the limit of a step's children.")
(defconstant +most-child-inputs+ 10000000
  "The maximum number of octets of the inputs of all children of a step.")
(defconstant +most-recorded+ 8 "The maximum number of reports of a step that are recognized when
they are repeated.")
(defconstant +most-signal-runs+ 8
  "The number of runs of a workflow whose signals are recognized when they are repeated.")
(defconstant +default-backoff-ms+ 1000)
(defconstant +default-max-backoff-ms+ 60000)
(defconstant +longest-ms+ 315576000000000
  "The latest time, in ms since 1970, and the longest duration in ms: ten thousand years.")

(defun check-name (name what &key (longest +longest-name+))
  "Return NAME, a string, if it may be part of a key: not empty, not long, without / and control
characters. WHAT names the thing in the error."
  (when (string= "" name) (refuse :invalid-request "~A has no characters" what))
  (let ((octets (utf8-length name)))
    (when (> octets longest)
      (refuse-size :too-large :name-octets longest octets "~A is too long" what)))
  (when (find-if (lambda (char)
                   (or (char= #\/ char) (char< char #\Space) (char= #\Rubout char)))
                 name)
    (refuse :invalid-request "~A has a / or a control character" what))
  name)

(defun name-p (text)
  "True if TEXT may be part of a key, see CHECK-NAME."
  (handler-case (check-name text "a name")
    (workflow-error () nil)))

(defun short-text (text)
  "TEXT, or its beginning if TEXT is too long to be kept."
  (if (<= (utf8-length text) +longest-text+)
      text
      (loop with octets = 0
            for char across text
            for end from 0
            do (incf octets (utf8-length (string char)))
            when (< +longest-text+ octets)
              return (subseq text 0 end))))

(defun check-payload (limits octets what)
  "Signal TOO-LARGE if OCTETS, a number, exceeds the limit in LIMITS for WHAT, a text."
  (when (> octets (limits-max-payload-octets limits))
    (refuse-size :too-large :max-payload-octets (limits-max-payload-octets limits) octets
                 "~A: too many octets" what)))
