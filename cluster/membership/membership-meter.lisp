;;;; The metrics of clusters, in a metrics object of the user's. Nodes that share an object of
;;;; metrics share these instruments; attributes distinguish the nodes.

(in-package #:clgrpc.cluster)

(defstruct (meters (:copier nil))
  "The instruments of clusters in a metrics object."
  (members nil :read-only t)            ; a gauge: the number of members
  (changes nil :read-only t)            ; a counter of changes, by kind
  (losses nil :read-only t)             ; a counter of leases of our own that were lost
  (joined nil :read-only t)             ; a gauge: 1 while the node is a member
  (generation nil :read-only t)         ; a gauge: the node's generation
  (watchers nil :read-only t))          ; a gauge: the number of watchers

(declaim (sb-ext:freeze-type meters))

(defun new-meters (metrics)
  (flet ((gauge (name unit text &rest attributes)
           (metrics:make-gauge metrics name :unit unit :text text :attributes attributes))
         (counter (name unit text &rest attributes)
           (metrics:make-counter metrics name :unit unit :text text :attributes attributes)))
    (make-meters
     :members (gauge "clgrpc.cluster.members" "{member}" "Members that the node knows of."
                     "clgrpc.cluster" "clgrpc.node")
     :changes (counter "clgrpc.cluster.changes" "{change}"
                       "Changes of members: joined, changed, left or lost."
                       "clgrpc.cluster" "clgrpc.node" "clgrpc.change")
     :losses (counter "clgrpc.cluster.lease_losses" "{lease}"
                      "How often the node's own lease has ended, or may have."
                      "clgrpc.cluster" "clgrpc.node")
     :joined (gauge "clgrpc.cluster.joined" "{member}" "1 while the node is a member, else 0."
                    "clgrpc.cluster" "clgrpc.node")
     :generation (gauge "clgrpc.cluster.generation" "{generation}"
                        "The node's generation, or its last one."
                        "clgrpc.cluster" "clgrpc.node")
     :watchers (gauge "clgrpc.cluster.watchers" "{call}" "Calls that watch the members."
                      "clgrpc.cluster" "clgrpc.node"))))

(defun meters-of (metrics)
  "The meters of METRICS; nil if METRICS is nil."
  (metrics:ensure-instruments metrics 'meters #'new-meters))
