;;;; Nodes: a server that is a member of a cluster from START-NODE to STOP-NODE. A node joins under
;;;; a lease of its own, which it keeps alive, and watches the other members.
;;;;
;;;; A node is a member while its state is :member. If the node's lease ends, or its entry is
;;;; deleted, the node is :lost, and joins again, as a new generation, when the store can be
;;;; reached. If another process has taken the node's name, the node stays :superseded and does not
;;;; take the name back. In both cases the node gives its lease back.
;;;;
;;;; A node learns from its watch, or from the next renewal of its lease, that its entry is gone. A
;;;; hung leader of etcd may report nothing by its watches, and renew leases that the present leader
;;;; has ended (etcd's issue 15247). So a node also reads its entry, once in the time of its lease;
;;;; a hung leader does not answer such a read.

(in-package #:clgrpc.cluster)

(defconstant +leaving-seconds+ 2
  "The time for which a node that stops waits for its store, which may hang: this long before its
calls drain, and this long afterwards.")

(defconstant +disconnecting-seconds+ 1
  "The seconds after the drain at which a stopping node stops making requests to its own store, so
that it ends soon.")

(defconstant +first-pause-seconds+ 1/4 "The time that a lost node waits before it joins again.")
(defconstant +longest-pause-seconds+ 2 "The longest wait, if joining fails.")

(defclass node ()
  ((store :initarg :store :reader node-store) ; a client of etcd
   ;; true if the store was opened for this node
   (own-store :initarg :own-store :reader node-own-store-p)
   (asked :initarg :asked :accessor node-asked) ; the member that the node wants to be
   (if-taken :initarg :if-taken :reader node-if-taken) ; the argument IF-TAKEN of JOIN-CLUSTER
   (rejoin :initarg :rejoin :reader node-rejoin-p) ; true if the node joins again after a loss
   (on-loss :initarg :on-loss :reader node-on-loss) ; a function of the CLUSTER-ERROR, or nil
   (on-join :initarg :on-join :reader node-on-join) ; a function of the node, or nil
   (meters :initarg :meters :reader node-meters) ; the instruments, or nil
   (service :initarg :service :reader node-service) ; the service Cluster
   (health :initarg :health :reader node-health) ; a health service
   (server :initform nil :accessor node-server) ; the server that serves both services
   (state :initform :joining :accessor node-%state) ; see NODE-STATE
   (generation :initform 0 :accessor node-%generation) ; the member's present or last generation
   (lease :initform nil :accessor node-%lease) ; the lease of the node while the node is a member
   (joiner :accessor node-joiner)       ; the job that looks for the node's entry, and joins again
   (pauses :initform nil :accessor node-pauses) ; JOINER's pauses before it joins again, or nil
   ;; guards these slots
   (lock :initform (sb-thread:make-mutex :name "clgrpc node") :reader node-lock))
  (:documentation "A server that is a member of a cluster, see START-NODE."))

(document-functions
  node-store "The client of etcd of NODE's store."
  node-health "The health service of NODE. For clgrpc.cluster.v1.Cluster it reports whether NODE is
  a member."
  node-server "The server of NODE.")

(defmacro with-node-lock ((node) &body body)
  `(sb-thread:with-mutex ((node-lock ,node)) ,@body))

(defun node-informer (node) (service-informer (node-service node)))

(defun node-name (node)
  "The name of NODE, a string. From any thread."
  (member-name (node-asked node)))

(defun node-cluster (node)
  "The name of NODE's cluster. From any thread."
  (informer-cluster (node-informer node)))

(defun node-address (node)
  "The address at which other processes reach NODE. From any thread."
  (member-address (node-asked node)))

(defun node-instance (node)
  "The instance name of NODE: random, and different each time that a node is started. From any
thread."
  (member-instance (node-asked node)))

(defun node-state (node)
  "The state of NODE's membership: :joining; :member; :lost, if its lease or entry has ended or may
have; :superseded, if another node has its name; :draining or :stopped. From any thread."
  (with-node-lock (node) (node-%state node)))

(defun node-generation (node)
  "Return the generation of NODE, an integer, or its last one if it is not a member now. By this
number other stores can distinguish NODE's writes from those of all earlier members of its name.
From any thread."
  (with-node-lock (node) (node-%generation node)))

(defun node-lease (node)
  "The lease of NODE, under which other entries may be put, or nil while it is not a member. When
NODE has joined again, it has another lease. From any thread."
  (with-node-lock (node) (node-%lease node)))

(define-printer (node node)
  "~A of ~A, ~(~A~), generation ~D" (node-name node) (node-cluster node) (node-%state node)
  (node-%generation node))

(defun node-members (node)
  "Return two values: the members that NODE knows, a list by name, and the revision of the store at
which it read them. This makes no request. While the store cannot be reached, both values stay as
they were. From any thread."
  (informer-members (node-informer node)))

(defun find-member (node name)
  "Return the member NAME as NODE knows it; nil if NODE knows no member of this name. From any
thread."
  (informer-member (node-informer node) name))

(defun await-members (node predicate &key (timeout 10))
  "Wait at most TIMEOUT seconds until PREDICATE, a function of the list of members that NODE knows,
is true. Return the last value of PREDICATE. From any thread but those of ON-CHANGE."
  (await-view (node-informer node) predicate timeout))

;;; Being a member, or not

(defun record-state (node)
  "Report NODE's state to its health service and metrics."
  (let ((state (node-state node)) (meters (node-meters node)))
    (services:set-health-status (node-health node) "clgrpc.cluster.v1.Cluster"
                                (if (eq :member state) :serving :not-serving))
    (when meters
      (let ((cluster (node-cluster node)) (name (node-name node)))
        (metrics:record (meters-joined meters) (if (eq :member state) 1 0) cluster name)
        (metrics:record (meters-generation meters) (node-generation node) cluster name)))))

(defun change-state (node from to)
  "Put NODE into the state TO if its state is in the list FROM. Return NODE's former state, or nil
if that is not in FROM; and its former lease, if any. NODE keeps the lease only if TO is :draining."
  (multiple-value-bind (before lease)
      (with-node-lock (node)
        (let ((before (node-%state node)) (lease (node-%lease node)))
          (when (member before from)
            (setf (node-%state node) to
                  (node-%lease node) (and (eq :draining to) lease))
            (values before lease))))
    (when before (record-state node))
    (values before lease)))

(defun enter-state (node member lease)
  "Note that NODE has joined as MEMBER with LEASE and is a member; return false if it is stopping."
  (when (with-node-lock (node)
          (when (member (node-%state node) '(:joining :lost))
            (setf (node-%generation node) (member-generation member)
                  (node-%lease node) lease
                  (node-%state node) :member)
            t))
    (record-state node)
    (loop:wake-job (node-joiner node))
    t))

(defun give-back (node lease &optional timeout)
  "End LEASE, a lease or nil, which NODE no longer needs: no thread renews it, and its entries are
deleted. If the store cannot be reached within TIMEOUT seconds, the lease ends by itself."
  (when lease
    (handler-case (etcd:revoke-lease lease :timeout timeout)
      (etcd:etcd-error (condition)
        (log-event :warning :cluster-node-not-left :node (node-name node)
                                                   :condition (bounded-text condition))))))

(defun tell-loss (node condition)
  "Report that NODE has lost its membership because of CONDITION."
  (log-event :warning :cluster-node-lost :node (node-name node)
                                         :condition (bounded-text condition))
  (when (node-on-loss node)
    (loop:guarding (:cluster-listener-error) (funcall (node-on-loss node) condition))))

(defun supersede (node member)
  "End NODE's membership, since MEMBER, another process, has taken NODE's name."
  (multiple-value-bind (before lease) (change-state node '(:member :lost :joining) :superseded)
    (when before
      (tell-loss node (make-condition
                       'superseded
                       :text (format nil "~A is of generation ~D now, at ~A" (member-name member)
                                     (member-generation member)
                                     (printable-text (member-address member)))))
      (give-back node lease 1))))

(defun lose-membership (node generation control &rest arguments)
  "End the membership of NODE that has GENERATION. CONTROL and ARGUMENTS format the reason."
  (when (= generation (node-generation node))
    (multiple-value-bind (before lease) (change-state node '(:member) :lost)
      (when before
        (when-let ((meters (node-meters node)))
          (metrics:add (meters-losses meters) 1 (node-cluster node) (node-name node)))
        (tell-loss node (make-condition 'membership-lost
                                        :text (format nil "~?" control arguments)))
        (loop:wake-job (node-joiner node))
        (give-back node lease 1)))))

(defun note-lease-lost (node generation cause)
  "End NODE's membership of GENERATION, whose lease has ended, or may have ended, because of CAUSE."
  (lose-membership node generation "the lease of ~A has ended: ~A" (node-name node) cause))

(defun note-entry-gone (node generation)
  "End NODE's membership of GENERATION, whose entry was deleted from the store."
  (lose-membership node generation "the entry of ~A was removed from the store" (node-name node)))

(defun join-node (node)
  "Make NODE a member. Signal the conditions of JOIN-CLUSTER."
  (let* ((known (node-generation node))
         (generation nil)
         (early nil))                   ; the cause, if the lease is lost before this returns
    (multiple-value-bind (member revision lease)
        (join-cluster (node-store node) (node-cluster node)
                      (renewed-member (node-asked node) :joined (unix-seconds))
                      :if-taken (node-if-taken node) :known known
                      :max-members (service-max-members (node-service node))
                      :on-loss (lambda (cause)
                                 (if (with-node-lock (node) (or generation
                                                                (not (setf early cause))))
                                     (note-lease-lost node generation cause))))
      (cond ((enter-state node member lease)
             (with-node-lock (node) (setf generation (member-generation member)))
             (when early (note-lease-lost node generation early))
             (look-back node revision)
             (when (and (node-on-join node) (eq :member (node-state node)))
               (loop:guarding (:cluster-listener-error) (funcall (node-on-join node) node))))
            ;; the node must end
            (t (give-back node lease 1))))))

(defun look-back (node revision)
  "Check the changes of NODE's entry since REVISION, at which it became a member: NODE has learned
this revision only now."
  (multiple-value-bind (member at) (informer-member (node-informer node) (node-name node))
    (when (<= revision at)
      (note-entry node member))))

(defun note-entry (node member)
  "Note that the entry of NODE's name is MEMBER's or, if MEMBER is nil, does not exist."
  (let ((generation (node-generation node)))
    (cond ((null member) (note-entry-gone node generation))
          ((< generation (member-generation member)) (supersede node member)))))

(defun look-for-entry (node)
  "Check that NODE, a member, has its entry in the store, unless the store does not answer."
  (handler-case (multiple-value-bind (entry member)
                    (fetch-entry (node-store node) (node-cluster node) (node-name node))
                  (when (and (or member (null entry)) (eq :member (node-state node)))
                    (note-entry node member)))
    ;; every error is caught, since the next check may succeed
    (error (condition)
      (log-event :info :cluster-entry-not-read :node (node-name node)
                                               :condition (bounded-text condition)))))

(defun attend-membership (node)
  "Run the job that looks for NODE's entry while NODE is a member, and makes NODE join again after a
loss, if NODE may join again. Return the seconds until the job runs again; nil if it waits until it
is woken."
  (ecase (node-state node)
    (:member (look-for-entry node)
     (member-lease-seconds (node-asked node)))
    (:lost (and (node-rejoin-p node) (join-again node)))
    ((:joining :superseded :draining :stopped) nil)))

(defun join-again (node)
  "Make NODE, which is lost, join again, after a pause. Return the seconds until the next attempt;
nil if no attempt follows."
  (handler-case
      (cond ((not (eq :lost (node-state node))) nil)
            ((node-pauses node)
             (join-node node)
             (setf (node-pauses node) nil))
            (t (loop:next-pause (setf (node-pauses node)
                                      (loop:make-pauses +first-pause-seconds+
                                                        +longest-pause-seconds+)))))
    (superseded ()
      (supersede node (or (handler-case (nth-value 1 (fetch-entry (node-store node)
                                                                  (node-cluster node)
                                                                  (node-name node)))
                            ((or cluster-error etcd:etcd-error) () nil))
                          (node-asked node)))
      nil)
    ;; every error is caught, since without this job the node would be lost for good
    (error (condition)
      (log-event :info :cluster-node-not-joined :node (node-name node)
                                                :condition (bounded-text condition))
      (loop:next-pause (node-pauses node)))))

(defun count-changes (node changes)
  "Count CHANGES of the cluster, a list, and its present members."
  (let ((meters (node-meters node)) (cluster (node-cluster node)) (name (node-name node)))
    (when meters
      (dolist (change changes)
        (metrics:add (meters-changes meters) 1 cluster name (change-kind change)))
      (metrics:record (meters-members meters) (informer-count (node-informer node)) cluster name))))

(defun note-changes (node changes)
  "Check NODE's own entry after CHANGES of the cluster, a list."
  (count-changes node changes)
  (let ((own (find (node-name node) changes :from-end t :test #'string=
                   :key (lambda (change) (member-name (change-member change))))))
    (when (and own (eq :member (node-state node)))
      (let ((member (change-member own)))
        (cond ((not (member (change-kind own) '(:left :lost))) (note-entry node member))
              ;; the entry of a former member with its name does not matter
              ((= (member-generation member) (node-generation node)) (note-entry node nil)))))))

;;; Its life

(defun random-instance ()
  "Sixteen hexadecimal digits."
  (format nil "~(~16,'0X~)" (random (expt 2 64) (loop:new-random-state))))

(defun make-node (name store service &rest arguments &key labels lease-seconds services
                                                        &allow-other-keys)
  "A node called NAME that does nothing yet."
  (let ((node (apply #'make-instance 'node
                     :store store :service service
                     :health (or (find-if (lambda (service)
                                            (typep service 'services:health-service))
                                          services)
                                 (make-instance 'services:health-service))
                     :asked (make-cluster-member :name name :labels labels
                                                 :lease-seconds lease-seconds
                                                 :instance (random-instance))
                     (alexandria:remove-from-plist arguments :labels :lease-seconds :services))))
    (setf (node-joiner node) (etcd:add-job store (lambda () (attend-membership node))))
    node))

(defun watch-watchers (node)
  "Add the number of watchers to NODE's metrics."
  (let ((meters (node-meters node)) (cluster (node-cluster node)) (name (node-name node)))
    (when meters
      (flet ((note-count (count) (metrics:record (meters-watchers meters) count cluster name)))
        (note-count 0)
        (setf (informer-on-watchers (node-informer node)) #'note-count)))))

(defun serve-node (node address services arguments)
  "Start the server of NODE, with its own services and SERVICES. Other nodes reach NODE at ADDRESS
or, if ADDRESS is nil, at the address where NODE listens."
  (let ((server (apply #'server:start-server
                       (append (list (node-service node))
                               (unless (member (node-health node) services)
                                 (list (node-health node)))
                               services)
                       arguments)))
    (setf (node-server node) server
          (node-asked node) (renewed-member (node-asked node)
                                            :address (discovery:check-address
                                                      (or address
                                                          (server:server-address server)))))
    (record-state node)))

(defun start-node (name &rest arguments
                   &key store (cluster "default") (listen "127.0.0.1:0") address labels
                     (lease-seconds 10) (if-taken :take-over) (rejoin t) (max-members 1000)
                     allow services metrics observer on-change on-loss on-join
                   &allow-other-keys)
  "Start a server that is the member NAME of CLUSTER, both strings, and return the node once it is a
member. STORE is a client of etcd, or the name of a store as OPEN-STORE takes it. The server listens
on LISTEN and serves clgrpc.cluster.v1.Cluster, health and SERVICES, a list of service objects; all
other keywords are for START-SERVER. Other processes see its ADDRESS and its LABELS, an alist of
strings. By default ADDRESS is LISTEN, which must then be an address of its own, not 0.0.0.0. The
node stays a member while its lease of LEASE-SECONDS, from 2 to 3600, is renewed by a thread. If the
node dies, or is cut off from the store, it is no longer a member after LEASE-SECONDS and at most
one second, or after at most twice LEASE-SECONDS if etcd has a new leader meanwhile. IF-TAKEN
decides what happens if another member has the name: with :take-over this process gets the name;
with :refuse NAME-TAKEN is signalled. If the lease is lost, the node joins again, as a new
generation, unless REJOIN is nil. ON-CHANGE is called first with all present members, as changes,
then with each list of changes of the cluster, in order. If the store has compacted changes that the
node has not received, ON-CHANGE gets the differences. ON-LOSS is called with a CLUSTER-ERROR,
MEMBERSHIP-LOST or SUPERSEDED, when the node has ceased to be a member. ON-JOIN is called with the
node each time it has become a member. ON-CHANGE, ON-LOSS and ON-JOIN run on threads of the node,
which wait until these functions return. METRICS, of MAKE-METRICS, counts joins, leaves and losses;
OBSERVER is for the server. At most MAX-MEMBERS may join through this node. ALLOW is a list of
permissions, (ROLE . PATTERN), for calls of the service; :read and :join are its roles. PATTERN is a
string: a DNS name or a SPIFFE identity of a certificate. In PATTERN * stands for one label or one
segment of the path, and {name} for the name of the member that the call joins, renews or leaves.
The pattern \"*\" matches every identity; \"anyone\" also matches peers without a certificate.
Without permissions no call may join, and with TLS no call may read. Signal NAME-TAKEN,
CLUSTER-FULL, an ETCD-ERROR, MISUSE for wrong arguments, or a condition of START-SERVER. From any
thread; end it with STOP-NODE."
  (check-name name "member")
  (let* ((own-store (stringp store))
         (store (if own-store (open-store store) store))
         (node nil) (done nil))
    (check-type store etcd:etcd)
    (unwind-protect
         (progn
           (setf node (make-node
                       name store (make-service store :cluster cluster
                                                :max-members max-members
                                                :lease-seconds lease-seconds
                                                :allow allow)
                       :own-store own-store :labels labels :lease-seconds lease-seconds
                       :services services :if-taken if-taken :rejoin rejoin :on-loss on-loss
                       :on-join on-join :meters (meters-of metrics)))
           (let ((informer (node-informer node)))
             (add-listener informer (lambda (changes) (note-changes node changes)))
             (watch-watchers node)
             (when on-change (add-listener informer on-change))
             (follow-store informer))
           (serve-node node address services
                       (list* :listen listen :observer (append (alexandria:ensure-list observer)
                                                               (alexandria:ensure-list metrics))
                              (alexandria:remove-from-plist
                               arguments :store :cluster :listen :address :labels :lease-seconds
                               :if-taken :rejoin :max-members :allow :services
                               :metrics :observer :on-change :on-loss :on-join)))
           (join-node node)
           (await-members node (lambda (members)
                                 (or (find name members :key #'member-name :test #'string=)
                                     (not (eq :member (node-state node)))))
                          :timeout 5)
           (setf done node))
      (unless done
        (if node
            (stop-node node :drain 0)
            (when own-store (etcd:close-etcd store)))))))

(defun stop-node (node &key (drain 10))
  "End NODE: announce that it is leaving, give the calls under way DRAIN seconds to end, leave, and
close its server, its service and the client of the store that it has opened itself. Return true if
all calls ended by themselves. If the store cannot be reached, or does not answer, NODE still stops,
within DRAIN plus two seconds; the other nodes see NODE as a member until its lease ends. From any
thread but the node's own."
  (multiple-value-bind (before lease)
      (change-state node '(:joining :member :lost :superseded) :draining)
    (if (null before)
        t
        (let* ((drained (loop:notice-end drain))
               (end (time-after (seconds-ns +leaving-seconds+) drained)))
          (when (node-own-store-p node)
            (etcd:close-after (node-store node) (+ drain +disconnecting-seconds+)))
          (unwind-protect
               (progn
                 (when lease (announce-draining node))
                 (or (null (node-server node))
                     (server:stop-server (node-server node)
                                         :drain (loop:seconds-until drained 0))))
            (give-back node lease (min +leaving-seconds+ (loop:seconds-until end)))
            (loop:end-job (node-joiner node) :seconds (loop:seconds-until end))
            (close-cluster-service (node-service node))
            (when (node-own-store-p node) (etcd:close-etcd (node-store node)))
            (change-state node '(:draining) :stopped))))))

(defun announce-draining (node)
  "Announce in the store that NODE is leaving, if the store can be reached."
  (handler-case (announce (node-store node) (node-cluster node) (node-name node)
                          (node-generation node) :timeout +leaving-seconds+)
    (etcd:etcd-error (condition)
      (log-event :warning :cluster-node-not-left :node (node-name node)
                                                 :condition (bounded-text condition)))))

(defmacro with-node ((variable name &rest arguments) &body body)
  "Evaluate BODY with VARIABLE bound to a node that START-NODE makes from NAME and ARGUMENTS. Stop
the node on exit."
  `(let ((,variable (start-node ,name ,@arguments)))
     (unwind-protect (progn ,@body)
       (stop-node ,variable))))
