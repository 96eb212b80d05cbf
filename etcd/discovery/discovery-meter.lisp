;;;; The metrics of discovery, in the metrics of a client of etcd. The watched names and the
;;;; registrations of all clients that share an object of metrics count together; the service's name
;;;; distinguishes them.

(in-package #:clgrpc.discovery)

(defstruct (meter (:copier nil))
  "The instruments of discovery in a metrics object."
  (ages '() :type list)                 ; functions that return the age of a name's data, in
                                        ; seconds, or nil; changed by ATOMIC-UPDATE
  ;; of a name that channels follow
  (servers nil :read-only t)            ; a gauge: how many servers there are, by state
  (changes nil :read-only t)            ; a counter, by kind
  (ignored nil :read-only t)            ; a counter of entries that do not describe a server
  (failures nil :read-only t)           ; a counter of failures, by kind
  ;; of servers that are registered here
  (registered nil :read-only t)         ; an up-down counter of servers that are in the store
  (writes nil :read-only t)             ; a counter of attempts to write, by outcome
  (renewals nil :read-only t)           ; a counter of repeated registrations
  (losses nil :read-only t))            ; a counter of leases

(declaim (sb-ext:freeze-type meter))

(defun longest-age (meter)
  "The greatest of the ages of METER; nil if no age is known."
  (loop for age in (meter-ages meter)
        for seconds = (funcall (the function age))
        when seconds maximize seconds into longest and count t into known
        finally (return (and (plusp known) longest))))

(defun new-meter (metrics)
  "A meter with the instruments of METRICS."
  (flet ((instrument (make name unit text &rest attributes)
           (funcall make metrics name :unit unit :text (format nil text)
                                      :attributes (cons "clgrpc.service" attributes))))
    (let ((meter
            (make-meter
             :servers (instrument #'metrics:make-gauge "clgrpc.discovery.servers" "{server}"
                                  "Servers of the service in etcd, by state." "clgrpc.state")
             :changes (instrument #'metrics:make-counter "clgrpc.discovery.changes" "{change}"
                                  "Changes of the service that etcd has reported." "clgrpc.change")
             :ignored (instrument #'metrics:make-counter "clgrpc.discovery.ignored" "{entry}"
                                  "Entries of the service that do not describe a server.")
             :failures (instrument #'metrics:make-counter "clgrpc.discovery.failures" "{failure}"
                                   "Failed attempts to read the service from etcd, or to look ~
                                    up the names of its hosts."
                                   "clgrpc.operation")
             :registered (instrument #'metrics:make-up-down-counter
                                     "clgrpc.registration.registered" "{server}"
                                     "Servers of this process that are registered in etcd.")
             :writes (instrument #'metrics:make-counter "clgrpc.registration.writes" "{attempt}"
                                 "Attempts to write the entry of a server, or to check that it ~
                                  exists, by outcome."
                                 "clgrpc.outcome")
             :renewals (instrument #'metrics:make-counter "clgrpc.registration.renewals" "{server}"
                                   "Servers that were registered again, because their lease or key ~
                                    was gone.")
             :losses (instrument #'metrics:make-counter "clgrpc.registration.losses" "{lease}"
                                 "Leases of registrations that have ended, or may have."))))
      (metrics:make-gauge metrics "clgrpc.discovery.age" :unit "s"
                          :function (lambda () (longest-age meter))
                          :text (format nil "The time since etcd's last answer, the longest over ~
                                              all watchers of the service."))
      meter)))

(defun meter-of (etcd)
  "The meter for the metrics of ETCD; nil if it has none."
  (metrics:ensure-instruments (etcd:etcd-metrics etcd) 'meter #'new-meter))

(defun note (meter instrument number &rest attributes)
  "Add NUMBER to the instrument that INSTRUMENT, a reader of meters, returns of METER, unless METER
is nil."
  (when meter
    (apply #'metrics:add (funcall (the function instrument) meter) number attributes)))

(defun begin-age (meter age)
  "Add AGE, a function, to METER, which calls it; do nothing if METER is nil."
  (when meter (sb-ext:atomic-push age (meter-ages meter))))

(defun end-age (meter age)
  (when meter
    (sb-ext:atomic-update (meter-ages meter) (lambda (ages) (remove age ages)))))
