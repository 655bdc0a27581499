//! Making the channels of a rank.

use std::sync::Arc;

use tracing::info_span;

use crate::connect::bootstrap::{Bootstrap, ByRef, agree};
use crate::connect::device_resources::DeviceResources;
use crate::connect::endpoint::Endpoint;
use crate::connect::endpoint_info::EndpointInfo;
use crate::connect::progress_thread::{PeriodicTask, ProgressThread};
use crate::limits::ALIVE_INTERVAL;
use crate::messages::channel::{Channel, ChannelSet};
use crate::messages::channel_options::ChannelOptions;
use crate::messages::channel_requests::ChannelRequests;
use crate::messages::channel_state::{ChannelState, dispatch};
use crate::messages::ring::{ChannelIndex, PeerRings, Rings};
use crate::messages::tag::Tag;
use crate::peer::PeerId;
use hostbuf::error::Result;
use hostbuf_register::{Budget, MonitorMode, RegistrationCache, Verbs};

impl Channel {
    /// Makes this process's channels, one for each of `requested`: another process of `bootstrap`
    /// and a tag. The other process requests the counterpart. All processes call it. Any
    /// [`Collective`](hostbuf::job::Collective) is a bootstrap. Each connection is made by the
    /// first message that needs it.
    ///
    /// Each rank does its own I/O, with a device, a datagram queue pair and a thread of its own.
    /// All channels of a rank share them, and the two queue pairs to each other rank. If one side
    /// loses a message or a notification because of a network failure, the channel fails
    /// permanently on both sides; make new channels then. The registration cache takes its budget
    /// and its monitor from the environment.
    ///
    /// # Errors
    /// [`Error::Invalid`](hostbuf::Error::Invalid), on all ranks, for a channel that only one side
    /// requests, that is requested twice, or that leads to the rank itself or to a rank that does
    /// not exist, and for options that differ. [`Error::Unsupported`](hostbuf::Error::Unsupported)
    /// on a rank that has no RDMA device with an active port, and `Invalid` for an option out of
    /// its range; [`Error::Elsewhere`](hostbuf::Error::Elsewhere) on the other ranks.
    pub fn connect<B: Bootstrap + ?Sized>(
        bootstrap: &B,
        requested: &[(PeerId, Tag)],
        options: ChannelOptions,
    ) -> Result<Vec<Channel>> {
        connect(&ByRef(bootstrap), requested, options)
    }
}

fn connect(
    bootstrap: &dyn Bootstrap,
    requested: &[(PeerId, Tag)],
    options: ChannelOptions,
) -> Result<Vec<Channel>> {
    let _span = info_span!("channels", count = requested.len()).entered();
    let requests = ChannelRequests::exchange(bootstrap, requested, options.layout())?;
    requests.check()?;
    let OpenedChannels { resources, rings, cache } = agree(bootstrap, open(&options, requested.len()))?;
    let info = EndpointInfo::new(resources.datagrams.address(), rings.remote(), rings.len());
    let infos = info.exchange(bootstrap)?;
    let own = bootstrap.index();
    let states: Arc<[ChannelState]> = requested
        .iter()
        .map(|&(peer, tag)| {
            let peer_channel = requests.index(peer, (own, tag)).expect("the request was checked");
            ChannelState::new(peer, tag, peer_channel, PeerRings(infos[peer.0].memory))
        })
        .collect();
    let endpoint = Arc::new(Endpoint::new(resources, own, &infos, options.connection));
    let rings = Arc::new(rings);
    let on_notification = {
        let states = states.clone();
        move |immediate| dispatch(&states, immediate)
    };
    // A rank that computes does not collect the results of its writes, and the peer may wait for a
    // message that is lost. The progress thread detects that.
    let collect = {
        let (states, rings) = (states.clone(), rings.clone());
        move || {
            for (index, state) in states.iter().enumerate() {
                state.try_collect(&rings, ChannelIndex(index));
            }
        }
    };
    let task = PeriodicTask { interval: ALIVE_INTERVAL, run: Box::new(collect) };
    let progress = ProgressThread::start(&endpoint, on_notification, Some(task));
    // No rank sends a connect message before all can reply.
    let progress = agree(bootstrap, progress)?;
    let set = Arc::new(ChannelSet { _progress: progress, states, cache, endpoint, rings });
    Ok((0..requested.len()).map(ChannelIndex).map(|index| Channel { set: set.clone(), index }).collect())
}

struct OpenedChannels {
    resources: DeviceResources,
    rings: Rings,
    cache: RegistrationCache<Verbs>,
}

fn open(options: &ChannelOptions, channels: usize) -> Result<OpenedChannels> {
    options.check()?;
    let resources = DeviceResources::open(&options.connection)?;
    let rings = Rings::new(&resources.verbs, options.layout(), channels)?;
    let (budget, monitor) = (Budget::from_environment()?, MonitorMode::from_environment()?);
    let cache = RegistrationCache::new(resources.verbs.clone(), budget, monitor)?;
    Ok(OpenedChannels { resources, rings, cache })
}
