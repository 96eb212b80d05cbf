;;;; The driver of a node, and how a node begins and ends.

(in-package #:clgrpc.examples.raft)

(defun make-node (name names disk &key (group "example") (timing *timing*) (most-entries 1000)
                                    (request-entries 100)
                                    (clock #'loop:world-now) observer)
  "Return the member NAME of the GROUP that consists of NAMES, with what is on DISK; see *TIMING*.
Its log keeps MOST-ENTRIES that were applied, and a request has REQUEST-ENTRIES at most. CLOCK
returns the time in nanoseconds. OBSERVER, if given, is called with the node, an event and its
arguments, with the lock: for logs and tests."
  (let ((node (make-instance 'node :name name :names names :disk disk :group group :timing timing
                                   :most-entries most-entries :request-entries request-entries
                                   :clock clock :observer observer)))
    (multiple-value-bind (log term vote) (read-journal disk)
      (setf (node-log node) log
            (node-term node) term
            (node-vote node) vote)
      (when (plusp (log-base-index log))
        (restore node (log-base-index log) (log-base-term log) (log-snapshot log))))
    (put-off-election node)
    node))

(defun node-services (node)
  "The services of NODE, for START-SERVER: Raft's, and that of its clients."
  (list (raft:add-group (raft:make-raft-service) (node-group node) (node-name node) node)
        (make-instance 'key-value :node node)))

(defun start-node (node addresses)
  "Have NODE, whose services are served, take part. ADDRESSES is an alist from the names of members
to their targets."
  (setf (node-peers node)
        (loop for (name . address) in addresses
              unless (string= name (node-name node))
                collect (raft:make-peer name address :group (node-group node)
                                                     :sender (node-name node)
                                                     :timeout 1 :backoff-maximum-seconds 1/2))
        (node-background node) (loop:make-background (format nil "raft ~A" (node-name node))))
  (loop:run-in-background (node-background node) (lambda () (drive node)))
  node)

(defun stop-node (node)
  "End NODE, whose server has ended. Nothing of it is lost."
  (with-node (node)
    (unless (node-ended node) (setf (node-ended node) :stopped))
    (end-waiting node))
  (ring node)
  (mapc #'raft:close-peer (shiftf (node-peers node) '()))
  (when (node-background node)
    (loop:end-background (shiftf (node-background node) nil)))
  (close-disk (node-disk node)))

(defun hand-over (node name)
  "Have the member NAME, in the place of NODE, which leads, stand for election at once."
  (let ((peer (find name (node-peers node) :key #'raft:peer-name :test #'string=)))
    (raft:timeout-now peer (v1:make-timeout-now-request :term (node-term node)))))

;;; Turns

(defun make-turn (node)
  "Do all that is to be done now; return functions that send."
  (mapc #'funcall (take-inbox node))
  (let ((asks (hold-election node)))
    (prog1 (append asks
                   (if (eq :leader (node-role node))
                       (replicate node)
                       (apply-committed node)))
      ;; a candidate's vote for itself, or a term that an answer has brought
      (sync-journal node))))

(defun seconds-to-wait (node)
  "How long NODE has nothing to do but by what comes."
  (let ((due-ns (if (eq :leader (node-role node))
                    (+ (timing-ns node :heartbeat)
                       (reduce #'min (node-progress node) :key #'progress-sent-ns
                                                          :initial-value (now node)))
                    (node-deadline-ns node))))
    (max 1/1000 (ns-seconds (max 0 (- due-ns (now node)))))))

(defun drive (node)
  "Make one turn after another until NODE has ended."
  (let ((seconds 1/1000))
    (loop
      (loop:await-semaphore (node-bell node) :timeout-seconds seconds)
      (loop while (sb-thread:try-semaphore (node-bell node)))
      (when (node-ended node) (return))
      (let ((sends (handler-case (with-disk (node)
                                   (multiple-value-prog1 (make-turn node)
                                     (setf seconds (seconds-to-wait node))))
                     (error (condition)
                       (log-condition :error :raft-node-broken condition :node (node-name node))
                       (return)))))
        (mapc #'funcall sends)))))
