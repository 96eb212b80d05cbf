;;;; Durable workflows on etcd. Functions that use no store, clock or thread decide the next state
;;;; after an event (decision.lisp). Another function computes the store's keys for a state
;;;; (index.lisp), so that each change is one transaction: the state, its history and the difference
;;;; of the keys. All other code passes events to the decisions: calls, times, ends of sessions.
;;;;
;;;; The files, from the ground up: conditions; limits; keys; steps as they are written; drafts, the
;;;; next states; decisions, about children, continuations and schedules, too; keys of a state;
;;;; dates; a node; how full the store is; metrics; changes in the store; claims; changes of many
;;;; workflows; sessions; errands; timers; the keeper; watches; searches; the methods of the
;;;; service, and of its schedules; routers and other clients; tasks and workers.

(defpackage #:clgrpc.workflow
  (:use #:cl #:clgrpc.base)
  (:import-from #:alexandria #:if-let #:when-let)
  (:local-nicknames (#:loop #:clgrpc.loop) (#:status #:clgrpc.status) (#:rpc #:clgrpc.rpc)
                    (#:protobuf #:clgrpc.protobuf) (#:server #:clgrpc.server)
                    (#:services #:clgrpc.services) (#:metrics #:clgrpc.metrics)
                    (#:trace #:clgrpc.trace) (#:etcd #:clgrpc.etcd)
                    (#:authority #:clgrpc.authority) (#:balance #:clgrpc.balance)
                    (#:calling #:clgrpc.calling) (#:client #:clgrpc.client)
                    (#:method #:clgrpc.method)
                    (#:pb #:clgrpc.workflow.v1) (#:methods #:clgrpc.workflow.v1.workflow))
  (:import-from #:sb-ext #:defglobal)
  (:export
   ;; workflow-condition.lisp
   #:workflow-error #:workflow-error-text #:workflow-error-cause #:workflow-error-limit
   #:workflow-error-most #:workflow-error-actual #:workflow-not-found #:workflow-exists
   #:workflow-closed #:workflow-running #:schedule-not-found #:schedule-exists #:claim-lost
   #:session-lost #:invalid-request #:too-large #:backlog-full #:store-unavailable
   #:changes-compacted #:access-denied #:store-full #:store-forbids
   ;; definition.lisp
   #:define-workflow #:find-workflow-steps
   ;; limit.lisp, workflow-node.lisp, keeper.lisp
   #:limit-names #:check-limit #:workflow-service #:make-workflow-service #:close-workflow-service
   ;; group-router.lisp
   #:router #:router-p #:make-router #:router-channels #:route
   ;; workflow-client.lisp
   #:start-workflow #:workflow-state #:signal-workflow #:cancel-workflow #:delete-workflow
   #:await-workflow #:map-workflows #:watch-workflow #:end-watching
   ;; schedule-client.lisp
   #:create-schedule #:schedule-state #:map-schedules #:pause-schedule #:resume-schedule
   #:delete-schedule
   ;; worker-task.lisp
   #:task #:task-id #:task-kind #:task-name #:task-input #:task-text #:task-fence #:task-attempt
   #:task-losses
   #:task-held-p #:task-results #:child-results #:continue-as-new #:fail-step #:define-step
   ;; worker.lisp
   #:worker #:start-worker #:stop-worker #:worker-running #:worker-open-p))
